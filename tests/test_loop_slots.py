"""Slots are independent and can be used again."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dspine_jax import loop
from dspine_jax.cache.gdn_state import GDNState
from dspine_jax.cache.paged_kv import PagedKV
from dspine_jax.generate import collect, prefill
from dspine_jax.loop.state import LoopState
from dspine_jax.request import Batch
from tests.scripted import (
    SLOTS,
    TOKENS,
    Request,
    ScriptedPlan,
    assign,
    empty_state,
    pair_of,
    plain_requests,
    random_prompts,
    script_of,
    start,
)

PLAN = ScriptedPlan(pair_of().plan)


@pytest.fixture(scope="module")
def requests() -> list[Request]:
    """Long prompts first, then ones shorter than the convolution's window."""
    return plain_requests(pair_of(), random_prompts(41, [130, 139, 120, 101, 1, 2, 3, 4, 60, 64, 65, 1]))


def admit(state: LoopState, arrivals: dict[int, Request], weights) -> LoopState:
    """Gives these slots to new requests while the others are in the middle of theirs."""
    fresh = jnp.asarray([slot in arrivals for slot in range(SLOTS)])
    state = state.reset_slots(fresh)
    state = assign(state, arrivals)
    return read_prompts(state, arrivals, weights)


def read_prompts(state: LoopState, arrivals: dict[int, Request], weights) -> LoopState:
    """Other slots are given no token."""
    prompts = tuple(np.array(arrivals[slot].prompt if slot in arrivals else [], np.int32) for slot in range(SLOTS))
    return prefill(PLAN, weights, state, Batch(prompts=prompts, max_new_tokens=TOKENS, stop_token_ids=()))


def spoil(state: LoopState, slot: int) -> LoopState:
    """The slot's recurrent states are no numbers any more."""
    layers = tuple(
        dataclasses.replace(layer, state=layer.state.at[slot].set(jnp.nan)) if isinstance(layer, GDNState) else layer
        for layer in state.target_cache.layers
    )
    return dataclasses.replace(state, target_cache=dataclasses.replace(state.target_cache, layers=layers))


def tokens_of(state: LoopState, slot: int) -> list[int]:
    return np.asarray(state.tokens)[slot, : int(state.emitted[slot])].tolist()


@pytest.mark.parametrize("right", [None, 15, lambda place: place % 5])
def test_a_slot_serves_a_short_prompt_after_a_long_one(requests, right):
    """No trace of the first request: states, convolution windows, pages and rings."""
    long, short = [dataclasses.replace(r, limit=40) for r in requests[:4]], requests[4:8]
    weights = script_of(pair_of(), long, [right] * 4)
    state = loop.run(PLAN, weights, start(pair_of(), weights, long))
    short = [dataclasses.replace(r, limit=30) for r in short]
    weights = script_of(pair_of(), short, [right] * 4)
    state = loop.run(PLAN, weights, admit(state, dict(enumerate(short)), weights))
    for slot, request in enumerate(short):
        assert tokens_of(state, slot) == request.expected[0]


def test_requests_come_and_go_while_others_run(requests):
    """Twelve requests through three slots, each admitted as soon as a slot is free, or cut off by a cancellation."""
    rng = np.random.default_rng(0)
    state, running, done, cancelled = empty_state(pair_of()), {}, 0, 0
    queue = [dataclasses.replace(r, limit=int(rng.integers(5, 30))) for r in requests]
    while queue or running:
        arrivals = {slot: queue.pop() for slot in range(3) if slot not in running and queue}
        running |= arrivals
        following = [running.get(slot, requests[0]) for slot in range(SLOTS)]
        weights = script_of(pair_of(), following, [None, 3, lambda place: place % 7] + [0] * 5)
        if arrivals:
            state = admit(state, arrivals, weights)
        state = loop.run_cycle(PLAN, weights, state)
        for slot, request in list(running.items()):
            tokens = tokens_of(state, slot)
            assert tokens == request.plain[: len(tokens)].tolist()
            if bool(state.done[slot]):
                assert tokens == request.expected[0]
                del running[slot]
                done += 1
            elif rng.random() < 0.05:
                state = dataclasses.replace(state, limit=state.limit.at[slot].set(0))
                del running[slot]
                cancelled += 1
    assert done + cancelled == len(requests)
    assert done >= 6 and cancelled >= 1


def test_a_slot_at_its_last_position_leaves_its_neighbours_pages_alone(requests):
    """Slot 3's last block ends where slot 4's pages begin. Idle slots write nothing at all."""
    request = plain_requests(pair_of(), random_prompts(42, [140]))[0]
    weights = script_of(pair_of(), [requests[0]] * 3 + [request], [0, 0, 0, 15])
    state = empty_state(pair_of())
    position = jnp.full_like(state.position, 100).at[3].set(0)
    mark = np.float32(12.5)
    layers = [
        jax.tree.map(lambda x: jnp.full_like(x, mark), layer) if isinstance(layer, PagedKV) else layer
        for layer in state.target_cache.layers
    ]
    state = dataclasses.replace(
        state,
        target_cache=dataclasses.replace(state.target_cache, layers=tuple(layers)),
        position=position,
    )
    state = assign(state, {3: request})
    state = read_prompts(state, {3: request}, weights)
    state = loop.run(PLAN, weights, state)
    assert tokens_of(state, 3) == request.expected[0]
    assert int(state.position[3]) == 239
    pages = [layer for layer in state.target_cache.layers if isinstance(layer, PagedKV)]
    for layer in pages:
        for x in (layer.k, layer.v):
            slots = np.asarray(x).reshape(SLOTS, 256, -1)
            np.testing.assert_array_equal(np.delete(slots, 3, axis=0), mark)
            assert (slots[3, :240] != mark).all()


def test_a_slot_without_finite_scores_ends_alone(requests):
    four = [dataclasses.replace(r, limit=40) for r in requests[:4]]
    weights = script_of(pair_of(), four, [3] * 4)
    state = loop.run_cycle(PLAN, weights, start(pair_of(), weights, four))
    before = tokens_of(state, 1)
    state = loop.run(PLAN, weights, spoil(state, 1))
    assert state.failed.tolist() == [slot == 1 for slot in range(SLOTS)]
    assert tokens_of(state, 1) == before
    for slot in (0, 2, 3):
        assert tokens_of(state, slot) == four[slot].expected[0]
    batch = Batch(prompts=(np.zeros(1, np.int32),) * 4, max_new_tokens=40, stop_token_ids=())
    with pytest.raises(FloatingPointError, match=r"prompts \[1\] stopped being finite, after \[5\] tokens"):
        collect(batch, state, 16)
