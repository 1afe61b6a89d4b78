"""After any order of steps the caches hold what plain decoding of the same tokens leaves."""

import dataclasses
import itertools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dspine_jax import loop
from dspine_jax.cache.gdn_state import GDNState
from dspine_jax.cache.paged_kv import PagedKV
from dspine_jax.loop.state import LoopState
from pallas_kernels.gated_delta import fold_records
from tests.pages import read_pages
from tests.scripted import (
    SLOTS,
    TARGET,
    ScriptedPlan,
    checked,
    copy,
    pair_of,
    plain_requests,
    random_prompts,
    script_of,
    start,
)
from tests.tolerances import FP32_STATES, assert_close

FULL, PARTIAL = 15, 6
STEPS = 4
LIMIT = 1 + STEPS * (FULL + 1)
PLAIN = "plain"  # one token without proposals
KINDS = (PLAIN, 0, PARTIAL, FULL)
PLAN = ScriptedPlan(pair_of().plan)


@jax.jit
def committed(state: LoopState) -> list[dict[str, jax.Array]]:
    """What the caches say, per layer: folded states, the convolution's window, keys and values of each position."""
    cache, draft_cache = state.target_cache, state.draft_cache
    assert draft_cache is not None
    window = TARGET.linear_conv_kernel_dim - 1
    layers = []
    for layer in cache.layers:
        if isinstance(layer, GDNState):
            folded = fold_records(layer.state, layer.records, cache.pending)
            layers.append({"state": folded, "conv": layer.conv_window(cache.pending, window)})
        else:
            k, v = read_pages(layer, cache.page_table)
            kept = (jnp.arange(k.shape[1])[None] < state.position[:, None])[..., None, None]
            layers.append({"k": jnp.where(kept, k, 0.0), "v": jnp.where(kept, v, 0.0)})
    rings = [{"draft k": ring.k, "draft v": ring.v} for ring in draft_cache.layers]
    return layers + rings


@pytest.fixture(scope="module")
def requests():
    prompts = random_prompts(31, [1, 2, 3, 4, 17, 40, 65, 128])
    return [dataclasses.replace(r, limit=LIMIT) for r in plain_requests(pair_of(), prompts)]


@pytest.fixture(scope="module")
def prompted(requests) -> LoopState:
    return start(pair_of(), script_of(pair_of(), requests, [0] * SLOTS), requests)


@pytest.fixture(scope="module")
def history(requests, prompted) -> list[list[dict[str, np.ndarray]]]:
    """By number of emitted tokens less one: the caches of plain decoding."""
    weights = script_of(pair_of(), requests, [0] * SLOTS)
    state, snapshots = copy(prompted), []
    for _ in range(LIMIT):
        snapshots.append(jax.tree.map(np.asarray, committed(state)))
        state = loop.run_plain_step(PLAN, weights, state)
    checked(pair_of(), state, requests)
    return snapshots


def check_state(state: LoopState, history, what: str) -> None:
    got = committed(state)
    emitted = np.asarray(state.emitted) - 1
    for index, layer in enumerate(got):
        for name, value in layer.items():
            want = np.stack([history[n][index][name][slot] for slot, n in enumerate(emitted)])
            assert_close(f"{what}, layer {index} {name}", value, want, FP32_STATES)


def take(step, weights, state: LoopState) -> LoopState:
    """One step; its slots advance by what they accepted and one."""
    position, cycles = np.asarray(state.position), int(state.cycles[0])
    run = loop.run_plain_step if step == PLAIN else loop.run_cycle
    state = run(PLAN, weights, state)
    accepted = np.asarray(state.accepted)[:, cycles]
    np.testing.assert_array_equal(np.asarray(state.position), position + accepted + 1)
    return state


def accepts(order: Sequence[str | int]) -> list[int]:
    return [step if isinstance(step, int) else 0 for step in order]


# One dispatch takes the same kind of step in all slots: orders are grouped by where their plain steps are.
PATTERNS = list(itertools.product((True, False), repeat=STEPS))


@pytest.mark.parametrize("plain", PATTERNS, ids=["".join("p" if x else "c" for x in p) for p in PATTERNS])
def test_every_order_of_steps(plain, requests, prompted, history):
    """Each of the 4^4 orders of a plain step, none accepted, some accepted and all accepted, once.

    Slots are at different places of different texts, and accept different counts in the same step.
    """
    choices = [(PLAIN,) if is_plain else KINDS[1:] for is_plain in plain]
    orders = list(itertools.product(*choices))
    for first in range(0, len(orders), SLOTS):
        group = orders[first : first + SLOTS]
        group += group[:1] * (SLOTS - len(group))
        rights = [accepts(order) for order in group]
        weights = script_of(pair_of(), requests, rights)
        state = copy(prompted)
        for index, is_plain in enumerate(plain):
            state = take(PLAIN if is_plain else "cycle", weights, state)
            check_state(state, history, f"orders {group}, step {index}")
        np.testing.assert_array_equal(np.asarray(state.accepted)[:, :STEPS], rights)


def test_dropping_a_block_leaves_the_state_and_the_next_one_the_same(requests, prompted, history):
    """A slot that is done reads its block again in every cycle: commit(0) each time."""
    weights = script_of(pair_of(), requests, [FULL] * SLOTS)
    limits = np.where(np.arange(SLOTS) % 2, LIMIT, 5)
    state = dataclasses.replace(copy(prompted), limit=jnp.asarray(limits, dtype=jnp.int32))
    for _ in range(STEPS):
        state = loop.run_cycle(PLAN, weights, state)
        check_state(state, history, "some slots done")
    np.testing.assert_array_equal(state.emitted, limits)
    # The same slots go on where they stopped.
    state = dataclasses.replace(state, limit=jnp.full_like(state.limit, LIMIT))
    state = loop.run(PLAN, weights, state)
    check_state(state, history, "resumed")
    checked(pair_of(), state, requests)


def test_speculation_off_and_on_in_the_middle_of_a_request(requests, prompted, history):
    """The real drafter proposes the same after plain steps as if it had drafted all along."""
    weights = script_of(pair_of(), requests, [None] * SLOTS)
    state = copy(prompted)
    for step in ("cycle", PLAIN, "cycle", PLAIN, PLAIN, "cycle"):
        state = take(step, weights, state)
        check_state(state, history, step)
    checked(pair_of(), loop.run(PLAN, weights, state), requests)


def test_garbage_beyond_the_committed_rows_is_never_read(requests, prompted):
    """Pages and rings after the prompt are filled with large values: only committed rows count."""
    state, position = copy(prompted), np.asarray(prompted.position)

    def spoil(pages):
        slots = np.asarray(pages).reshape(SLOTS, -1, *pages.shape[2:]).copy()
        for slot, length in enumerate(position):
            slots[slot, length:] = 1e4
        return jnp.asarray(slots.reshape(pages.shape))

    layers = [
        jax.tree.map(spoil, layer) if isinstance(layer, PagedKV) else layer for layer in state.target_cache.layers
    ]
    cache = dataclasses.replace(state.target_cache, layers=tuple(layers))
    state = dataclasses.replace(state, target_cache=cache)
    weights = script_of(pair_of(), requests, [None, FULL, 0, PARTIAL] * 2)
    checked(pair_of(), loop.run(PLAN, weights, state), requests)
