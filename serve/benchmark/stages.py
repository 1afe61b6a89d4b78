"""The stages of a cycle, each compiled by itself and timed alone on the same state.

Inside a cycle the compiler joins what follows each other, and nothing is launched from the host in between: the times
of the stages are not expected to add up to the cycle's. They show where the time goes, and the cycle's own is beside
them.
"""

import dataclasses
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from dspine_jax.drafter.model import DraftStates
from dspine_jax.loop import LoopState, steps
from dspine_jax.pair import PairPlan, PairWeights
from dspine_jax.request import Batch
from dspine_jax.sampling.draft import Draft, draw_chain
from dspine_jax.sampling.width import Verification
from serve.benchmark.timeline import Spread
from serve.benchmark.ways import Way

STAGES = ("draft", "candidates", "tail", "verify", "commit")
WARM_UP = 2


@partial(jax.jit, static_argnames="plan")
def draft(plan: PairPlan, weights: PairWeights, state: LoopState) -> DraftStates:
    """The drafter's backbone over a block of masks."""
    return plan.bind(weights)[1].states(state.anchor, state.position, _draft_cache(state))


@partial(jax.jit, static_argnames="plan")
def candidates(plan: PairPlan, weights: PairWeights, states: DraftStates) -> tuple[jax.Array, jax.Array]:
    """The best tokens of each row, and their scores before the tail."""
    return plan.bind(weights)[1].candidates(states.hidden)


@partial(jax.jit, static_argnames=("plan", "width"))
def tail(
    plan: PairPlan, weights: PairWeights, state: LoopState, states: DraftStates, found: tuple, *, width: int
) -> tuple[jax.Array, Draft | None]:
    """The choice along the block, cut to `width` rows: greedy, or drawn where a slot is sampled."""
    proposer = plan.bind(weights)[1]
    if state.sampling is None:
        return proposer.chain(states, state.anchor, found[0])[:, : width - 1], None
    scores = proposer.logits(states, state.anchor, *found)[:, : width - 1]
    drawn = draw_chain(
        scores,
        found[0][:, : width - 1],
        state.sampling,
        position=state.position,
        emitted=state.emitted,
        stop_ids=state.stop_ids,
    )
    return drawn.tokens, drawn


@partial(jax.jit, static_argnames=("plan", "verification"), donate_argnames="state")
def verify(
    plan: PairPlan,
    verification: Verification,
    weights: PairWeights,
    state: LoopState,
    tokens: jax.Array,
    drawn: Draft | None,
) -> tuple[LoopState, tuple]:
    """The target's pass over the block, and the judgement; the state, and what the commit needs."""
    proposals = tokens.astype(state.anchor.dtype)
    block = jnp.concatenate([state.anchor[:, None], proposals], axis=1)
    state, rows, logits, features = steps.read_block(plan.bind(weights)[0], plan.taps, state, block)
    allowed = jnp.full_like(state.emitted, block.shape[1])
    accepted, choices = verification.judge(state, proposals, logits, drawn, allowed)
    return state, (rows, features, choices.astype(state.anchor.dtype), accepted)


@partial(jax.jit, static_argnames="plan", donate_argnames="state")
def commit(plan: PairPlan, weights: PairWeights, state: LoopState, verified: tuple) -> LoopState:
    """Emits the accepted run, and gives the drafter the features of its rows."""
    rows, features, choices, accepted = verified
    return steps.commit(plan.bind(weights)[1], state, rows, None, features, choices, accepted)


@dataclasses.dataclass(frozen=True)
class StageTimes:
    """Seconds of one call, waiting for its result; medians and spreads over the calls."""

    concurrency: int
    stages: dict[str, Spread]
    cycle: Spread
    plain_step: Spread


def measure(speculative: Way, plain: Way, batch: Batch, *, calls: int) -> StageTimes:
    """Every stage on the state after the prompts, then whole cycles and plain steps in the same manner."""
    plan, weights, how = speculative.pair.plan, speculative.pair.weights, speculative.verification
    width = how.widths[-1] if how.widths else speculative.pair.drafter_config.block_size
    state = speculative.start(batch)
    states = draft(plan, weights, state)
    found = candidates(plan, weights, states)
    tokens, drawn = tail(plan, weights, state, states, found, width=width)
    seconds = {
        "draft": _seconds(lambda: draft(plan, weights, state), calls),
        "candidates": _seconds(lambda: candidates(plan, weights, states), calls),
        "tail": _seconds(lambda: tail(plan, weights, state, states, found, width=width), calls),
    }
    # From here on states are donated, as in the loop.
    state, verified = verify(plan, how, weights, state, tokens, drawn)
    seconds["verify"], (state, verified) = _in_turn(
        lambda given: verify(plan, how, weights, given[0], tokens, drawn), (state, verified), calls
    )
    seconds["commit"], _ = _in_turn(lambda given: commit(plan, weights, given, verified), state, calls)
    whole, _ = _in_turn(speculative.step, speculative.start(batch), calls)
    step, _ = _in_turn(plain.step, plain.start(batch), calls)
    return StageTimes(concurrency=len(batch.prompts), stages=seconds, cycle=whole, plain_step=step)


def _seconds(call: Callable[[], Any], calls: int) -> Spread:
    return _in_turn(lambda _: call(), None, calls)[0]


def _in_turn(call: Callable[[Any], Any], given: Any, calls: int) -> tuple[Spread, Any]:
    """Times calls that each get the result of the one before, and returns the last."""
    seconds = []
    for _ in range(WARM_UP + calls):
        start = time.perf_counter()
        given = jax.block_until_ready(call(given))
        seconds.append(time.perf_counter() - start)
    return Spread.of(seconds[WARM_UP:]), given


def _draft_cache(state: LoopState):
    if state.draft_cache is None:
        raise ValueError("this state was made for plain decoding: it has no draft cache")
    return state.draft_cache
