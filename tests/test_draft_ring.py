"""The bounded draft cache proposes what one that keeps everything proposes."""

import jax.numpy as jnp
import numpy as np
import pytest

from dspine_jax.cache.draft_ring import DraftCache, DraftRing
from dspine_jax.request import check_requests, new_state
from pallas_kernels.block_attention import held_positions
from tests.drafter_runner import DrafterRunner
from tests.pages import store
from tests.tiny import tiny_target_config
from tests.tolerances import FP32_OP, assert_close

WINDOW, BLOCK, SLOTS = 8, 5, 4


@pytest.fixture(scope="module")
def runner() -> DrafterRunner:
    return DrafterRunner.of(sliding_window=WINDOW, block_size=BLOCK)


def draft_cache(runner: DrafterRunner, *, dense: bool) -> DraftCache:
    """As a batch of requests gets it."""
    target = tiny_target_config()
    batch = check_requests(target, [[0]] * SLOTS, 200, [])
    cache = new_state(batch, target, runner.config, runner.dtype, dense=dense).draft_cache
    assert cache is not None
    return cache


def test_only_layers_that_see_everything_keep_everything(runner):
    rows = [ring.k.shape[1] for ring in draft_cache(runner, dense=False).layers]
    assert rows == [WINDOW + BLOCK, WINDOW + BLOCK, 256 + BLOCK]
    rows = [ring.k.shape[1] for ring in draft_cache(runner, dense=True).layers]
    assert rows == [256 + BLOCK] * 3


def check_equal(runner, anchor, position, ring, dense):
    got, want = (runner.block(anchor, position, cache).hidden for cache in (ring, dense))
    assert_close(f"hidden at {position}", got, want, FP32_OP)
    got, want = ((np.asarray(x) @ np.asarray(runner.head).T).argmax(-1) for x in (got, want))
    np.testing.assert_array_equal(got, want)


def test_ring_equals_dense_over_five_windows(runner):
    """Slots commit 0 to 5 rows at a time; blocks follow at every offset of the ring."""
    rng = np.random.default_rng(0)
    ring, dense = draft_cache(runner, dense=False), draft_cache(runner, dense=True)
    position = np.zeros(SLOTS, np.int32)
    for step in range(5 * 2 * WINDOW):
        features = runner.features(SLOTS, BLOCK, seed=step)
        count = rng.integers(0, BLOCK + 1, SLOTS)
        ring = runner.write(features, count, ring, position)
        dense = runner.write(features, count, dense, position)
        position = position + count.astype(np.int32)
        check_equal(runner, rng.integers(0, 90, SLOTS), position, ring, dense)
        if position.min() >= 5 * WINDOW + 2 * BLOCK:
            break
    assert position.min() >= 5 * WINDOW


def test_ring_equals_dense_after_a_prompt_longer_than_the_ring(runner):
    features, length = runner.features(SLOTS, 48), np.array([48, 14, 13, 3])
    ring = runner.write(features, length, draft_cache(runner, dense=False))
    dense = runner.write(features, length, draft_cache(runner, dense=True))
    check_equal(runner, np.arange(SLOTS), length, ring, dense)


def ring_of(rows: int, slots: int = 1) -> DraftRing:
    return DraftRing(k=jnp.zeros((slots, rows, 1, 1)), v=jnp.zeros((slots, rows, 1, 1)))


def write_span(ring: DraftRing, start: int, length: int, width: int) -> DraftRing:
    """Rows hold their position; `width` rows are given and the first `length` are valid."""
    positions = start + jnp.arange(width)[None]
    values = positions.astype(jnp.float32)[..., None, None]
    return store(ring, ring.places(positions, jnp.arange(width)[None] < length), values, -values)


@pytest.mark.parametrize(("start", "length"), [(0, 3), (0, 5), (3, 4), (9, 1), (10, 5), (7, 0)])
def test_rows_hold_the_last_positions(start, length):
    ring = write_span(ring_of(5), 0, start, max(start, 1))
    ring = write_span(ring, start, length, 6)
    held = held_positions(jnp.array([start + length]), 5)
    end = start + length
    kept = sorted(p for p in held[0].tolist() if p >= 0)
    assert kept == list(range(max(end - 5, 0), end))
    for row, position in enumerate(held[0].tolist()):
        if position >= 0:
            assert (float(ring.k[0, row, 0, 0]), float(ring.v[0, row, 0, 0])) == (position, -position)


def test_a_span_longer_than_the_ring_keeps_its_end():
    ring = write_span(ring_of(5), 0, 13, 16)
    assert sorted(ring.k.ravel().tolist()) == [8, 9, 10, 11, 12]


@pytest.mark.parametrize("order", [1, -1])
def test_which_rows_of_a_long_span_stay_does_not_depend_on_the_order_of_writes(order):
    """A scatter that meets a row twice may keep either value: only the last positions may be written at all."""
    ring, length = 6, 20
    positions = jnp.arange(length)[None, ::order]
    rows = jnp.broadcast_to(positions[..., None, None].astype(jnp.float32), (1, length, 1, 2))
    empty = DraftRing(k=jnp.full((1, ring, 1, 2), -1.0), v=jnp.full((1, ring, 1, 2), -1.0))
    got = store(empty, empty.places(positions, jnp.ones((1, length), bool)), rows, 2 * rows)
    held = np.asarray(held_positions(jnp.array([length]), ring))[0]
    assert sorted(held) == list(range(length - ring, length))
    np.testing.assert_array_equal(np.asarray(got.k)[0, :, 0, 0], held)
    np.testing.assert_array_equal(np.asarray(got.v)[0, :, 0, 1], 2 * held)


def test_an_empty_ring_holds_nothing():
    assert (np.asarray(held_positions(jnp.array([0, 0]), 5)) < 0).all()
