"""A cycle works in place: the state's buffers are handed over, none is copied."""

import jax
import jax.numpy as jnp

from dspine_jax import loop
from dspine_jax.cache.paged_kv import PagedKV
from dspine_jax.pair import build_pair
from dspine_jax.request import check_requests, new_state
from tests.scripted import ScriptedPlan, pair_of, plain_requests, random_prompts, script_of, start
from tests.tiny import random_drafter, random_target, tiny_drafter_config, tiny_target_config

FULL = "full_attention"


def pointers(state) -> list[int]:
    return [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(state)]


def test_states_move_from_cycle_to_cycle_in_place():
    requests = plain_requests(pair_of(), random_prompts(81, [5, 9]))
    weights = script_of(pair_of(), requests, [3, None])
    plan = ScriptedPlan(pair_of().plan)
    state = start(pair_of(), weights, requests)
    for step in (loop.run_cycle, loop.run_plain_step, loop.run_cycle, loop.run):
        before, held = state, pointers(state)
        assert len(set(held)) == len(held), "two leaves share a buffer"
        state = step(plan, weights, state)
        assert all(leaf.is_deleted() for leaf in jax.tree.leaves(before))
        assert set(pointers(state)) == set(held)


def test_a_fresh_state_shares_no_buffer():
    batch = check_requests(tiny_target_config(), [[1], [2]], 5, None)
    target = tiny_target_config()
    held = pointers(new_state(batch, target, tiny_drafter_config(target), jnp.dtype("float32")))
    assert len(set(held)) == len(held)


def test_a_cycle_needs_less_room_than_one_copy_of_the_cache():
    """Long slots, several attention layers: what a cycle holds beside its state is about one layer's pages."""
    target = tiny_target_config(layer_types=("linear_attention", FULL, FULL, FULL), max_position_embeddings=8192)
    drafter = tiny_drafter_config(
        target, num_hidden_layers=1, layer_types=("sliding_attention",), target_layer_ids=(0,)
    )
    pair = build_pair(target, drafter, random_target(target, 0), random_drafter(drafter, 0))
    batch = check_requests(target, [[1]] * 2, 8000, [])
    state = new_state(batch, target, drafter, pair.dtype)
    lowered = loop.run_cycle.lower(pair.plan, pair.weights, state)
    memory = lowered.compile({"xla_backend_optimization_level": 0}).memory_analysis()
    assert memory is not None
    pages = [layer for layer in state.target_cache.layers if isinstance(layer, PagedKV)]
    cache_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(pages))
    state_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    assert cache_bytes > 0.9 * state_bytes
    assert memory.alias_size_in_bytes == state_bytes
    assert memory.temp_size_in_bytes < cache_bytes
