"""What the target thought of the emitted tokens.

A logprob is the log-softmax of the target's own logits, before processors, temperature and filters: the same number
for a token whatever the request asks of sampling, and the same in speculative and plain decoding.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from dspine_jax.cache.slots import clear_slots


@dataclasses.dataclass(frozen=True)
class Logprobs:
    """Of one request, one entry per emitted token; the best tokens are sorted, the lowest id first among equals."""

    tokens: np.ndarray  # [n] float32
    top_ids: np.ndarray  # [n, k] int32
    top: np.ndarray  # [n, k] float32

    def first(self, count: int) -> "Logprobs":
        """Those of the first `count` tokens."""
        return Logprobs(self.tokens[:count], self.top_ids[:count], self.top[:count])

    def best(self, count: int) -> "Logprobs":
        """Those of the `count` best tokens, at most as many as there are."""
        return Logprobs(self.tokens, self.top_ids[:, :count], self.top[:, :count])


@functools.partial(jax.tree_util.register_dataclass, data_fields=["tokens", "top_ids", "top", "wanted"], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class LogprobBuffer:
    """Filled like the loop's own token buffer; absent when no request wants logprobs."""

    tokens: Float[Array, "B capacity"]
    top_ids: Int[Array, "B capacity k"]
    top: Float[Array, "B capacity k"]
    wanted: Bool[Array, " B"]  # nothing is computed in a pass of which no slot wants any

    @staticmethod
    def zeros(slots: int, capacity: int, best: int) -> "LogprobBuffer":
        return LogprobBuffer(
            tokens=jnp.zeros((slots, capacity), jnp.float32),
            top_ids=jnp.zeros((slots, capacity, best), jnp.int32),
            top=jnp.zeros((slots, capacity, best), jnp.float32),
            wanted=jnp.ones(slots, jnp.bool_),
        )

    def record(
        self,
        logits: Float[Array, "B T V"],
        choices: Int[Array, "B T"],
        start: Int[Array, " B"],
        emitted: Bool[Array, "B T"],
    ) -> "LogprobBuffer":
        """Choice i was scored by row i of the target's own logits; the emitted ones begin at entry `start`."""
        emitted = emitted & self.wanted[:, None]
        return jax.lax.cond(jnp.any(emitted), self._record, lambda *_: self, logits, choices, start, emitted)

    def reset_slots(self, fresh: Bool[Array, " B"]) -> "LogprobBuffer":
        """Empty entries, and none wanted, in the marked slots."""
        return jax.tree.map(lambda x: clear_slots(x, fresh), self)

    def _record(self, logits, choices, start, emitted):
        total = jax.nn.logsumexp(logits, axis=-1)
        chosen = jnp.take_along_axis(logits, choices[..., None], axis=-1)[..., 0] - total
        top, ids = jax.lax.top_k(logits, self.top.shape[2])
        offset = jnp.arange(choices.shape[1], dtype=start.dtype)[None, :]
        column = jnp.where(emitted, start[:, None] + offset, self.tokens.shape[1])
        slot = jnp.arange(choices.shape[0])[:, None]
        return LogprobBuffer(
            tokens=self.tokens.at[slot, column].set(chosen, mode="drop"),
            top_ids=self.top_ids.at[slot, column].set(ids, mode="drop"),
            top=self.top.at[slot, column].set(top - total[..., None], mode="drop"),
            wanted=self.wanted,
        )

    def collect(self, slot: int, emitted: int, best: int) -> Logprobs:
        """One request's entries on the host, of the `best` tokens that it asked for."""
        return Logprobs(
            tokens=np.asarray(self.tokens[slot, :emitted]),
            top_ids=np.asarray(self.top_ids[slot, :emitted, :best]),
            top=np.asarray(self.top[slot, :emitted, :best]),
        )
