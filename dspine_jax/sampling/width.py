"""How many rows of a block the target runs: a fixed number, or chosen in each cycle among a few.

A narrow pass is cheaper, and rows behind an unlikely proposal are rarely worth their cost. The choice is staged: with
widths w_1 < w_2 < ..., the block is first w_1 rows, and whether it goes on from w_j rows to w_{j+1} depends only on

* the proposals and the draft laws of rows before w_j, of all slots, and
* the cost of each width, which was measured before,

never on the tokens of the rows that are gated, nor on later rows, nor on the target's logits of this cycle.

Why this keeps the output law. Write c for the proposals that are verified; c = i is an event of d_1 .. d_i alone (and
of things independent of this slot's draws). Token by token: given that d_1 .. d_i were accepted, the next token comes
from p when c = i, and otherwise from a draw of q_{i+1} that is accepted with min(1, p/q) or replaced from the
residual. Both have the law p, and which of them applies was settled before any number behind the next token was
drawn. As a block: the method rests on Pr(at least i accepted | d_1 .. d_i) = P_i. Where c = i it holds by
h_i = P_i. Where c > i, Pr(at least i+1 accepted | d_1 .. d_i) = sum_v q_{i+1}(v) P_{i+1} = P_i - m_i by the same
statement one row later, and h_i = m_i / (m_i + 1 - P_i) makes P_i of it. So the induction goes through for every cut
that depends on the past only, and the law of the accepted prefix and the token after it is p's. A choice that looked
at d_{i+1}, say at its own q, would cut away exactly the blocks with unlikely proposals, and so change their law.

A greedy slot emits the target's choices whatever the width.

A request that named its seed must not depend on its neighbours, so it takes part in the choice alone: its own rows
are cut where it would have cut them by itself, even if others make the pass wider.
"""

import dataclasses
from collections.abc import Sequence
from typing import Literal, Protocol

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from dspine_jax.sampling.draft import Draft
from dspine_jax.sampling.state import Sampling
from dspine_jax.sampling.verify import verify_sampled
from dspine_jax.verify import verify_greedy

Method = Literal["token", "block"]
Width = int | Literal["auto"]


@dataclasses.dataclass(frozen=True)
class WidthCosts:
    """Seconds of a whole cycle at each width, as `measure_widths` returns them; ascending widths."""

    widths: tuple[int, ...]
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.widths) != len(self.seconds) or len(self.widths) < 1:
            raise ValueError(f"got {len(self.widths)} widths and {len(self.seconds)} costs, wanted one cost each")
        if any(b <= a for a, b in zip(self.widths, self.widths[1:], strict=False)):
            raise ValueError(f"widths are {self.widths}, wanted them ascending")
        if not all(0 < s < float("inf") for s in self.seconds):
            raise ValueError(f"costs are {self.seconds}, wanted positive seconds")


class Slots(Protocol):
    """What verifying needs to know of the slots; `dspine_jax.loop.LoopState` has it."""

    @property
    def sampling(self) -> Sampling | None: ...
    @property
    def position(self) -> Int[Array, " B"]: ...
    @property
    def emitted(self) -> Int[Array, " B"]: ...
    @property
    def stop_ids(self) -> Int[Array, "B K"]: ...
    @property
    def cycles(self) -> Int[Array, " B"]: ...


@dataclasses.dataclass(frozen=True)
class Verification:
    """The static side of verifying: one compiled program per value."""

    method: Method = "token"
    widths: tuple[int, ...] = ()  # empty: the whole block; several: chosen in each cycle, the costs lie in the state

    def __post_init__(self) -> None:
        if self.method not in ("token", "block"):
            raise ValueError(f"verification is {self.method!r}, wanted 'token' or 'block'")

    def judge(
        self,
        slots: Slots,
        proposals: Int[Array, "B T-1"],
        logits: Float[Array, "B T V"],
        draft: Draft | None,
        allowed: Int[Array, " B"] | None,
    ) -> tuple[Int[Array, " B"], Int[Array, "B T"]]:
        """Accepted proposals per slot, and the tokens to emit: choice 0 .. accepted.

        Row i of `logits` scores the token after block row i. Sampled slots need the `draft` that the proposals come
        from and the rows `allowed` to each slot.
        """
        if slots.sampling is None:
            return verify_greedy(proposals, logits)
        if draft is None or allowed is None:
            raise ValueError("sampled slots are verified with the draft that the proposals come from")
        law = slots.sampling.law(logits, proposals, slots.emitted, slots.stop_ids)
        return verify_sampled(slots.sampling, draft, law, slots.position, allowed, method=self.method)


WHOLE_BLOCK = Verification()


def auto_widths(block_size: int) -> tuple[int, ...]:
    """A quarter, half and the whole of a block, each at least 2 rows."""
    return tuple(sorted({max(2, block_size // part) for part in (4, 2, 1)}))


def check_width(width: int, block_size: int) -> int:
    """Raises ValueError for a width outside 2 .. block_size."""
    if isinstance(width, bool) or not isinstance(width, int) or not 2 <= width <= block_size:
        raise ValueError(
            f"verify_width is {width!r}, wanted 'auto', None or a number of rows from 2 to {block_size}, the"
            " block of this drafter; decode plainly to run one row"
        )
    return width


def choose_rows(
    confidence: Float[Array, "B T-1"],
    active: Bool[Array, " B"],
    alone: Bool[Array, " B"],
    seconds: Float[Array, " W"],
    widths: Sequence[int],
) -> tuple[Int[Array, ""], Int[Array, " B"]]:
    """The index of the width to run, and each slot's rows of it.

    `confidence` of a row estimates that its proposal is accepted, from the draft law given the proposal before.
    Stage j goes on when some later width is expected to emit more tokens per second; rows not yet drawn are expected
    to be accepted as often as those seen so far in the block.
    """
    survival = jnp.cumprod(confidence, axis=1)
    gains = [_expected(survival, widths, stage) for stage in range(len(widths) - 1)]
    together = active & ~alone
    sums = [jnp.sum(jnp.where(together, gain, 0.0), axis=1) for gain in gains]
    own = _stages([_worth(gain, seconds, stage) for stage, gain in enumerate(gains)])  # [B]
    shared = _stages([_worth(total, seconds, stage) for stage, total in enumerate(sums)])
    index = jnp.maximum(shared, jnp.max(jnp.where(active & alone, own, 0)))
    table = jnp.asarray(widths, jnp.int32)
    return index, jnp.where(alone, table[own], table[index])


def _stages(goes_on: Sequence[Bool[Array, "*B"]]) -> Int[Array, "*B"]:
    """How many stages are passed before the first that does not go on."""
    return jnp.sum(jnp.cumprod(jnp.stack(goes_on).astype(jnp.int32), axis=0), axis=0)


def _expected(survival: Float[Array, "B T-1"], widths: Sequence[int], stage: int) -> Float[Array, "W B"]:
    """Tokens expected of each width from this stage's on (zero for narrower ones), from rows before it only."""
    seen = widths[stage] - 1
    last = survival[:, seen - 1]
    ratio = last ** (1 / seen)
    out = [jnp.zeros_like(last)] * stage
    tokens = 1 + jnp.sum(survival[:, :seen], axis=1)
    rows = widths[stage]
    for width in widths[stage:]:
        for _ in range(width - rows):
            last = last * ratio
            tokens = tokens + last
        rows = width
        out.append(tokens)
    return jnp.stack(out)


def _worth(tokens: Float[Array, "W *B"], seconds: Float[Array, " W"], stage: int) -> Bool[Array, "*B"]:
    """Whether a later width than this stage's emits more per second."""
    rate = tokens / seconds.reshape(-1, *(1,) * (tokens.ndim - 1))
    return jnp.any(rate[stage + 1 :] > rate[stage], axis=0)
