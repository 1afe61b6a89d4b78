"""Every program that an engine runs. Each is compiled once, the cycle once per bucket; states are donated.

A slot's own arrays are picked out, worked on and put back; pages never move.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from dspine_jax.loop import steps
from dspine_jax.loop.compiled import Plan
from dspine_jax.loop.lanes import put_lanes, take_lanes
from dspine_jax.loop.snapshots import Snapshot
from dspine_jax.loop.state import LoopState
from dspine_jax.sampling.state import Sampling
from dspine_jax.sampling.width import Verification
from serve.engine.report import pack


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["page_table", "stop_ids", "sampling", "logprobs"], meta_fields=[]
)
@dataclasses.dataclass(frozen=True)
class Newcomer:
    """What a slot must know of the request that enters it; one row each."""

    page_table: Int[Array, "1 pages"]
    stop_ids: Int[Array, "1 K"]
    sampling: Sampling
    logprobs: Bool[Array, " 1"]  # whether any are wanted


@functools.partial(jax.jit, donate_argnames="state")
def admit(state: LoopState, slot: Int[Array, " 1"], newcomer: Newcomer) -> LoopState:
    """Clears the slot and gives it to the newcomer. It does not run yet: its limit is 0 until the prompt was read."""
    lane = _reset(take_lanes(state, slot), newcomer.page_table)
    if lane.logprobs is None:
        raise ValueError("an engine's state always has room for logprobs")
    lane = dataclasses.replace(
        lane,
        stop_ids=newcomer.stop_ids,
        sampling=newcomer.sampling,
        logprobs=dataclasses.replace(lane.logprobs, wanted=newcomer.logprobs),
    )
    return put_lanes(state, slot, lane)


@functools.partial(jax.jit, donate_argnames="state")
def vacate(state: LoopState, slot: Int[Array, " 1"]) -> LoopState:
    """Clears the slot and takes its pages away, so that they can be given to others."""
    lane = take_lanes(state, slot)
    return put_lanes(state, slot, _reset(lane, jnp.zeros_like(lane.target_cache.page_table)))


@functools.partial(jax.jit, donate_argnames="state")
def clear_pages(state: LoopState, pages: Int[Array, " n"]) -> LoopState:
    """Zeroes these pages."""
    return dataclasses.replace(state, target_cache=state.target_cache.clear_pages(pages))


@functools.partial(jax.jit, donate_argnames="snapshots")
def save(snapshots: Snapshot, state: LoopState, slot: Int[Array, " 1"], index: Int[Array, " 1"]) -> Snapshot:
    """The snapshots, with the slot's in this place."""
    return snapshots.put(index, Snapshot.of(take_lanes(state, slot)))


@functools.partial(jax.jit, donate_argnames="state")
def restore(state: LoopState, snapshots: Snapshot, slot: Int[Array, " 1"], index: Int[Array, " 1"]) -> LoopState:
    """The slot, which was just admitted with pages that fit, goes on from a snapshot."""
    return put_lanes(state, slot, snapshots.take(index).restore(take_lanes(state, slot)))


@functools.partial(jax.jit, static_argnames="plan", donate_argnames="state")
def read_chunk(
    plan: Plan,
    weights: object,
    state: LoopState,
    slot: Int[Array, " 1"],
    ids: Int[Array, "1 T"],
    length: Int[Array, " 1"],
) -> LoopState:
    """The slot reads the next `length` tokens of its prompt, of the T given."""
    target, drafting = plan.bind(weights)
    lane = steps.read_prompt(target, drafting, plan.taps, take_lanes(state, slot), ids, length)
    return put_lanes(state, slot, lane)


@functools.partial(jax.jit, static_argnames="plan", donate_argnames="state")
def first_token(
    plan: Plan, weights: object, state: LoopState, slot: Int[Array, " 1"], limit: Int[Array, " 1"]
) -> LoopState:
    """The slot has read its prompt: it emits the token that follows, and runs until it has emitted `limit`."""
    lane = dataclasses.replace(take_lanes(state, slot), limit=limit)
    return put_lanes(state, slot, steps.first_token(plan.bind(weights)[0], lane))


@functools.partial(jax.jit, static_argnames=("plan", "verification"), donate_argnames="state")
def cycle(
    plan: Plan, weights: object, state: LoopState, slots: Int[Array, " W"], verification: Verification
) -> tuple[LoopState, Int[Array, "W columns"]]:
    """One speculative cycle of these slots, and its report; their buffers are empty afterwards.

    As many slots as there are means all, in their own order: nothing is picked out then.
    """
    target, drafting = plan.bind(weights)
    if drafting is None:
        raise ValueError("this plan has no drafter")
    whole = slots.shape == state.position.shape
    lanes = state if whole else take_lanes(state, slots)
    ran = ~lanes.done
    lanes = steps.speculative_cycle(target, drafting, plan.taps, lanes, verification)
    report = pack(lanes, ran)
    lanes = lanes.drain()
    return (lanes if whole else put_lanes(state, slots, lanes)), report


def _reset(lane: LoopState, page_table: Array) -> LoopState:
    lane = lane.reset_slots(jnp.ones(1, jnp.bool_))
    return dataclasses.replace(lane, target_cache=dataclasses.replace(lane.target_cache, page_table=page_table))
