"""Slots of a state are emptied, drained, and worked on as a smaller batch: pure functions, bit for bit."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dspine_jax.cache.paged_kv import PagedKV
from dspine_jax.loop.lanes import put_lanes, take_lanes
from dspine_jax.loop.state import NO_TOKEN, LoopState
from dspine_jax.request import check_requests, new_state
from dspine_jax.sampling import SamplingParams
from tests.tiny import tiny_drafter_config, tiny_target_config

TARGET = tiny_target_config()
DRAFTER = tiny_drafter_config(TARGET)
SLOTS = 4
PARAMS = SamplingParams(temperature=0.5, top_p=0.9, seed=3, repetition_penalty=1.2, min_tokens=9, logprobs=2)


def state_of() -> LoopState:
    """As a batch begins: no slot is empty."""
    batch = check_requests(TARGET, [[1, 2]] * SLOTS, 20, [5], [PARAMS] * SLOTS)
    return new_state(batch, TARGET, DRAFTER, jnp.dtype("float32"), width_seconds=[1.0, 2.0])


def filled(seed: int) -> LoopState:
    """Every array full of something else."""
    rng = np.random.default_rng(seed)

    def fill(x):
        return jnp.asarray(rng.integers(0, 2 if x.dtype == np.bool_ else 90, x.shape).astype(x.dtype))

    return jax.tree.map(fill, state_of())


def leaves(state: LoopState) -> dict[str, np.ndarray]:
    return {jax.tree_util.keystr(path): np.asarray(x) for path, x in jax.tree_util.tree_leaves_with_path(state)}


def shared(state: LoopState) -> set[str]:
    """Paths of the arrays that have no row per slot."""
    layers = state.target_cache.layers
    pages = {
        f".target_cache.layers[{i}].{x}" for i, layer in enumerate(layers) if isinstance(layer, PagedKV) for x in "kv"
    }
    return pages | {".width_seconds"}


def test_lanes_are_the_slots_rows_and_the_pages_are_everybodys():
    state = filled(0)
    lanes = leaves(take_lanes(state, jnp.asarray([3, 1])))
    for path, x in leaves(state).items():
        np.testing.assert_array_equal(lanes[path], x if path in shared(state) else x[[3, 1]], err_msg=path)


def test_lanes_come_back_to_their_slots_and_no_other_changes():
    state, other = filled(1), filled(2)
    slots = jnp.asarray([2, 0])
    got = leaves(put_lanes(state, slots, take_lanes(other, slots)))
    before, after = leaves(state), leaves(other)
    assert shared(state) < set(got)
    for path, x in got.items():
        want = after[path]
        if path not in shared(state):
            want = before[path].copy()
            want[[2, 0]] = after[path][[2, 0]]
        np.testing.assert_array_equal(x, want, err_msg=path)


NOT_ZERO = {
    ".stop_ids": NO_TOKEN,
    ".sampling.filters.top_p": 1,
    ".sampling.processors.repetition": 1,
}


@pytest.mark.parametrize("bad", [None, np.nan, np.inf])
def test_an_empty_slot_holds_nothing_of_its_request(bad):
    state = filled(3)
    if bad is not None:
        state = jax.tree.map(lambda x: x * jnp.asarray(bad, x.dtype) if x.dtype == np.float32 else x, state)
    fresh = jnp.asarray([False, True, False, True])
    before, after = leaves(state), leaves(state.reset_slots(fresh))
    kept = shared(state) | {".target_cache.page_table"}
    for path, x in after.items():
        want = before[path].copy()
        if path not in kept:
            want[[1, 3]] = NOT_ZERO.get(path, 0)
        np.testing.assert_array_equal(x, want, err_msg=path)
    assert state.reset_slots(fresh).done[1] and state.reset_slots(fresh).done[3]


def test_draining_changes_no_decision():
    """What is left to emit, and how long stop ids are banned, count on from where they are."""
    state = dataclasses.replace(
        state_of(),
        emitted=jnp.asarray([0, 4, 12, 20], jnp.int32),
        stopped=jnp.asarray([False, False, True, False]),
        cycles=jnp.asarray([0, 2, 5, 9], jnp.int32),
    )
    drained = state.drain()
    assert drained.emitted.tolist() == drained.cycles.tolist() == [0] * SLOTS
    assert drained.limit.tolist() == [20, 16, 8, 0]
    np.testing.assert_array_equal(drained.done, state.done)
    assert drained.sampling is not None and drained.sampling.processors is not None
    assert drained.sampling.processors.min_tokens.tolist() == [9, 5, 0, 0]
    for path, x in leaves(state).items():
        if path not in (".emitted", ".cycles", ".limit", ".sampling.processors.min_tokens"):
            np.testing.assert_array_equal(leaves(drained)[path], x, err_msg=path)


def test_the_cleared_pages_are_zero_and_no_other_changes():
    cache = filled(4).target_cache
    cleared = cache.clear_pages(jnp.asarray([5, 0, 0]))
    for before, after in zip(cache.layers, cleared.layers, strict=True):
        for x, y in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
            want = np.array(x)
            if isinstance(before, PagedKV):
                want[[0, 5]] = 0
            np.testing.assert_array_equal(y, want)


def test_working_on_some_slots_copies_no_page():
    """Much room in pages: what picking two slots out and putting them back needs is less than one layer's."""
    target = tiny_target_config(max_position_embeddings=8192)
    drafter = tiny_drafter_config(
        target, num_hidden_layers=1, layer_types=("sliding_attention",), target_layer_ids=(0,)
    )
    batch = check_requests(target, [[1]] * SLOTS, 8000, [])
    state = new_state(batch, target, drafter, jnp.dtype("float32"))

    def work(state: LoopState, slots: jax.Array) -> LoopState:
        lanes = take_lanes(state, slots)
        return put_lanes(state, slots, lanes.reset_slots(lanes.position > 3))

    compiled = jax.jit(work, donate_argnums=0).lower(state, jnp.asarray([2, 0])).compile()
    memory = compiled.memory_analysis()
    assert memory is not None
    pages = next(layer for layer in state.target_cache.layers if isinstance(layer, PagedKV))
    assert memory.alias_size_in_bytes == sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    assert memory.temp_size_in_bytes < pages.k.nbytes
