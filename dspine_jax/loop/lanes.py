"""Some slots of a state as a smaller batch of their own.

Whatever has one row per slot is copied out and back. Pages are not: the small batch works in the pool that all slots
share, through its own rows of the page table.
"""

import dataclasses
from collections.abc import Callable

import jax
from jaxtyping import Array, Int

from dspine_jax.cache.paged_kv import PagedKV
from dspine_jax.cache.target_cache import TargetCache
from dspine_jax.loop.state import LoopState


def take_lanes(state: LoopState, slots: Int[Array, " W"]) -> LoopState:
    """The state of these slots, all different, in this order."""
    return _per_slot(lambda x: x[slots], state)


def put_lanes(state: LoopState, slots: Int[Array, " W"], lanes: LoopState) -> LoopState:
    """The state with what `take_lanes` of the same slots became; its pages are those of `lanes`."""
    return _per_slot(lambda x, y: x.at[slots].set(y, unique_indices=True), state, lanes)


def _per_slot(change: Callable[..., Array], *states: LoopState) -> LoopState:
    """`change` of every array with a row per slot; the last state's of all others."""
    last = states[-1]

    def entry(*layers):
        return layers[-1] if isinstance(layers[-1], PagedKV) else jax.tree.map(change, *layers)

    cache = TargetCache(
        layers=tuple(entry(*e) for e in zip(*(state.target_cache.layers for state in states), strict=True)),
        page_table=change(*(state.target_cache.page_table for state in states)),
        pending=change(*(state.target_cache.pending for state in states)),
    )
    shared = {"target_cache": cache, "width_seconds": last.width_seconds}
    fields = [field.name for field in dataclasses.fields(LoopState) if field.name not in shared]
    changed = {name: jax.tree.map(change, *(getattr(state, name) for state in states)) for name in fields}
    return LoopState(**shared, **changed)
