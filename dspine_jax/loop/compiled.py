"""The compiled forms. Weights cross the boundary as leaves, states are donated, one dispatch per cycle."""

from functools import partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from dspine_jax.loop import steps
from dspine_jax.loop.state import LoopState
from dspine_jax.sampling.width import WHOLE_BLOCK, Verification
from dspine_jax.target import Target

# XLA would join matrix products that read the same rows, and copy their weights side by side in every cycle to do so:
# 73 MB of the drafter's, and more with a higher threshold (docs/log.md).
OPTIONS = {"xla_gpu_dot_merger_threshold_mb": 0}
_jit = partial(jax.jit, compiler_options=OPTIONS)


class Plan(Protocol):
    """The static side of a pair: hashable, and able to bind weights to models inside a trace."""

    @property
    def taps(self) -> tuple[int, ...]:
        """Target layers whose outputs the drafter reads; empty without a drafter."""
        ...

    def bind(self, weights: Any) -> tuple[Target, steps.Drafting | None]:
        """The models with these weights."""
        ...


@partial(_jit, static_argnames="plan", donate_argnames="state")
def prefill_chunk(
    plan: Plan, weights: Any, state: LoopState, ids: Int[Array, "B T"], length: Int[Array, " B"]
) -> LoopState:
    """Reads the next `length` [B] tokens of each prompt, of the T given."""
    target, drafting = plan.bind(weights)
    return steps.read_prompt(target, drafting, plan.taps, state, ids, length)


@partial(_jit, static_argnames="plan", donate_argnames="state")
def finish_prefill(plan: Plan, weights: Any, state: LoopState) -> LoopState:
    """Emits the first token of each slot that has none."""
    return steps.first_token(plan.bind(weights)[0], state)


@partial(_jit, static_argnames=("plan", "verification"), donate_argnames="state")
def run_cycle(plan: Plan, weights: Any, state: LoopState, verification: Verification = WHOLE_BLOCK) -> LoopState:
    """One speculative cycle."""
    return _cycle(plan, weights, verification, state)


@partial(_jit, static_argnames="plan", donate_argnames="state")
def run_plain_step(plan: Plan, weights: Any, state: LoopState) -> LoopState:
    """One token per slot without speculation."""
    return _plain(plan, weights, state)


@partial(_jit, static_argnames=("plan", "verification"), donate_argnames="state")
def run(plan: Plan, weights: Any, state: LoopState, verification: Verification = WHOLE_BLOCK) -> LoopState:
    """Speculative cycles until every slot is done, without the host."""
    return jax.lax.while_loop(_active, partial(_cycle, plan, weights, verification), state)


@partial(_jit, static_argnames="plan", donate_argnames="state")
def run_plain(plan: Plan, weights: Any, state: LoopState) -> LoopState:
    """Plain steps until every slot is done, without the host."""
    return jax.lax.while_loop(_active, partial(_plain, plan, weights), state)


def _active(state):
    return jnp.any(~state.done)


def _cycle(plan, weights, verification, state):
    target, drafting = plan.bind(weights)
    if drafting is None:
        raise ValueError("this plan has no drafter: use the plain step")
    return steps.speculative_cycle(target, drafting, plan.taps, state, verification)


def _plain(plan, weights, state):
    target, drafting = plan.bind(weights)
    return steps.plain_step(target, drafting, plan.taps, state)
