"""Accepted lengths from a given distribution, in place of the target's agreement.

The cost of a cycle does not depend on which proposals are right, so pairs without trained weights can be measured as
if they drafted well. All the work of verifying is done; only its outcome is replaced. What is emitted is then not the
model's text, and every report that holds such a figure says FORCED.
"""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dspine_jax.sampling.width import Verification


@dataclasses.dataclass(frozen=True)
class Forced(Verification):
    """Verification that accepts a number drawn from `shares`, by seed, slot and cycle."""

    shares: tuple[float, ...] = ()  # of cycles that accept 0, 1, ... proposals; they sum to 1
    seed: int = 0

    def judge(self, slots, proposals, logits, draft, allowed):
        """The drawn number, cut to the rows of this pass, and the proposals themselves before the target's choice."""
        _, choices = super().judge(slots, proposals, logits, draft, allowed)
        accepted = jnp.minimum(self.draw(slots.cycles), proposals.shape[1])
        offset = jnp.arange(choices.shape[1])[None, :]
        padded = jnp.pad(proposals, ((0, 0), (0, 1)))
        return accepted, jnp.where(offset < accepted[:, None], padded, choices)

    def draw(self, cycles: jax.Array) -> jax.Array:
        """Accepted proposals [B] of each slot's cycle [B]."""
        base = jax.random.key(self.seed)
        slot = jnp.arange(cycles.shape[0])
        keys = jax.vmap(lambda slot, cycle: jax.random.fold_in(jax.random.fold_in(base, slot), cycle))(slot, cycles)
        coin = jax.vmap(lambda key: jax.random.uniform(key, (), jnp.float32))(keys)
        steps = jnp.asarray(np.cumsum(self.shares)[:-1], jnp.float32)
        return jnp.sum(coin[:, None] >= steps[None, :], axis=1).astype(cycles.dtype)

    @property
    def tokens_per_cycle(self) -> float:
        """The mean of the distribution, the target's own token included."""
        return 1 + sum(number * share for number, share in enumerate(self.shares))


def read_shares(text: str, block: int) -> tuple[float, ...]:
    """A mean number of tokens per cycle, or a JSON file that holds a histogram, as shares of 0 .. block-1 accepted.

    The file holds a list, an object with the list as `histogram`, or a report of `dspine bench`. Raises ValueError.
    """
    try:
        mean = float(text)
    except ValueError:
        return from_histogram(_histogram(Path(text)), block)
    return from_mean(mean, block)


def from_mean(tokens: float, block: int) -> tuple[float, ...]:
    """Each proposal is right with the same chance while all before it were, such that the mean is as asked for."""
    if not 1 <= tokens <= block:
        raise ValueError(f"the mean is {tokens} tokens per cycle, wanted 1 to {block}: a block of {block} rows")
    low, high = 0.0, 1.0
    for _ in range(60):  # beyond the last bit of the interval
        chance = (low + high) / 2
        reached = 1 + sum(chance**number for number in range(1, block))
        low, high = (chance, high) if reached < tokens else (low, chance)
    chance = (low + high) / 2
    return (*(chance**number * (1 - chance) for number in range(block - 1)), chance ** (block - 1))


def from_histogram(counts: Sequence[float], block: int) -> tuple[float, ...]:
    """Cycles by accepted proposals as shares."""
    if not all(isinstance(n, int | float) and not isinstance(n, bool) and 0 <= n < float("inf") for n in counts):
        raise ValueError(f"the histogram is {list(counts)}, wanted counts of cycles, none negative")
    if any(counts[block:]) or sum(counts) <= 0:
        raise ValueError(
            f"the histogram {list(counts)} has {len(counts)} entries that sum to {sum(counts)}; wanted cycles with"
            f" 0 to {block - 1} accepted proposals, at least one cycle"
        )
    padded = [*counts[:block], *[0] * (block - len(counts))]
    return tuple(count / sum(padded) for count in padded)


def _histogram(path: Path) -> list[float]:
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} is no number and cannot be read as a JSON file: {error}") from None
    if isinstance(content, dict) and isinstance(content.get("acceptance"), list) and content["acceptance"]:
        content = content["acceptance"][0]
    if isinstance(content, dict):
        content = content.get("histogram")
    if not isinstance(content, list) or not content:
        raise ValueError(f"{path} holds no histogram; wanted a list, an object with `histogram`, or a bench report")
    return content
