"""The drafter's layers against float64, and what each input does to them."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from tests.drafter_runner import DrafterRunner
from tests.tolerances import BF16_LOGITS, FP32_OP, FP32_ROPE, FP32_VISIBLE, assert_close

LENGTHS = np.array([40, 3])  # context of each slot: five windows, and less than one
ANCHORS = np.array([17, 4])


@pytest.fixture(scope="module")
def runner() -> DrafterRunner:
    return DrafterRunner.of()


@pytest.fixture(scope="module")
def cache(runner):
    return runner.write(runner.features(2, 40), LENGTHS, runner.cache(2))


@pytest.fixture(scope="module")
def states(runner, cache):
    return runner.block(ANCHORS, LENGTHS, cache)


def check_states(got, runner, features, bound, *, bridged=True):
    for slot, (anchor, length) in enumerate(zip(ANCHORS, LENGTHS, strict=True)):
        want = runner.oracle.block(int(anchor), np.asarray(features)[slot, :length], bridged=bridged)
        assert_close(f"slot {slot} residual", got.residual[slot], want.residual[1:], bound)
        assert_close(f"slot {slot} hidden", got.hidden[slot], want.hidden[1:], bound)
        assert_close(f"slot {slot} magnitude", got.magnitude[slot, :, 0], want.magnitude[1:], bound)
        assert_close(f"slot {slot} code", got.code[slot], want.code[1:], bound)


@pytest.mark.parametrize("is_causal", [None, True, False])
def test_mixed_layers_equal_float64(is_causal):
    """Window 8 in two layers, a full third one, context of 40 and of 3, six heads of 8 on a width of 40."""
    runner = DrafterRunner.of(is_causal=is_causal)
    assert runner.config.head_dim * runner.config.num_attention_heads != runner.config.hidden_size
    features = runner.features(2, 40)
    cache = runner.write(features, LENGTHS, runner.cache(2))
    check_states(runner.block(ANCHORS, LENGTHS, cache), runner, features, FP32_OP)


def test_without_bridge_equals_float64(runner, cache):
    got = runner.block(ANCHORS, LENGTHS, cache, bridged=False)
    check_states(got, runner, runner.features(2, 40), FP32_OP, bridged=False)


def test_bfloat16_follows_float64():
    runner = DrafterRunner.of(dtype="bfloat16")
    features = runner.features(2, 40)
    got = runner.block(ANCHORS, LENGTHS, runner.write(features, LENGTHS, runner.cache(2)))
    for slot, length in enumerate(LENGTHS):
        want = runner.oracle.block(int(ANCHORS[slot]), np.asarray(features[slot, :length], np.float32))
        assert_close("hidden", np.asarray(got.hidden[slot], np.float32), want.hidden[1:], BF16_LOGITS)


def test_context_keys_are_rotated_by_absolute_positions(runner, cache):
    """The full layer keeps all positions; the sliding layers the last window + block."""
    features = np.asarray(runner.features(2, 40))
    for layer, ring in enumerate(cache.layers):
        k, v = runner.oracle.context(layer, features[0])
        rows = ring.k.shape[1]
        held = np.arange(max(40 - rows, 0), 40)
        assert_close(f"layer {layer} k", ring.k[0, held % rows], k[held], FP32_ROPE)
        assert_close(f"layer {layer} v", ring.v[0, held % rows], v[held], FP32_OP)


def test_context_in_chunks_equals_context_at_once(runner, cache):
    features = runner.features(2, 40)
    chunked = runner.cache(2)
    for start in range(0, 40, 8):
        length = np.clip(LENGTHS - start, 0, 8)
        chunked = runner.write(features[:, start : start + 8], length, chunked, start)
    for got, want in zip(chunked.layers, cache.layers, strict=True):
        assert_close("k", got.k, want.k, FP32_OP)
        assert_close("v", got.v, want.v, FP32_OP)


def test_the_anchor_reaches_every_row(runner, cache, states):
    """Row 0 holds the anchor's embedding and code, not the mask's."""
    other = runner.block(ANCHORS + 1, LENGTHS, cache)
    difference = np.abs(np.asarray(other.hidden - states.hidden)).max(axis=-1)
    assert (difference > FP32_VISIBLE).all()


def test_only_rows_of_the_anchor_and_the_mask_are_embedded(runner, cache, states):
    used = [*ANCHORS, runner.config.mask_token_id]
    embedding = jnp.full_like(runner.embedding, jnp.nan).at[jnp.array(used)].set(runner.embedding[jnp.array(used)])
    got = runner.replace(embedding=embedding).block(ANCHORS, LENGTHS, cache)
    np.testing.assert_array_equal(got.hidden, states.hidden)


def test_features_reach_every_row(runner, states):
    got = runner.block(ANCHORS, LENGTHS, runner.cache(2))
    assert (np.abs(np.asarray(got.hidden - states.hidden)).max(axis=-1) > FP32_VISIBLE).all()


def test_each_tap_matters(runner, states):
    features = runner.features(2, 40)
    half = runner.config.hidden_size
    for first in (True, False):
        mask = (jnp.arange(features.shape[-1]) < half) == first
        cache = runner.write(jnp.where(mask, features, 0.0), LENGTHS, runner.cache(2))
        got = runner.block(ANCHORS, LENGTHS, cache)
        assert (np.abs(np.asarray(got.hidden - states.hidden)).max(axis=-1) > FP32_VISIBLE).all()


def test_features_at_the_anchor_and_later_are_not_seen(runner, states):
    """Rows beyond the committed length are dropped whatever they hold."""
    features = runner.features(2, 40)
    beyond = jnp.arange(40)[None, :, None] >= LENGTHS[:, None, None]
    cache = runner.write(jnp.where(beyond, jnp.nan, features), LENGTHS, runner.cache(2))
    got = runner.block(ANCHORS, LENGTHS, cache)
    np.testing.assert_array_equal(got.hidden, states.hidden)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_large_features_stay_finite(dtype):
    runner = DrafterRunner.of(dtype=dtype)
    features = runner.features(2, 40) * jnp.asarray(1e5, runner.dtype)
    cache = runner.write(features, LENGTHS, runner.cache(2))
    assert all(bool(jnp.isfinite(x).all()) for ring in cache.layers for x in (ring.k, ring.v))
    states = runner.block(ANCHORS, LENGTHS, cache)
    assert all(bool(jnp.isfinite(x).all()) for x in dataclasses.astuple(states))


def test_slots_do_not_mix(runner, cache, states):
    swapped = runner.write(runner.features(2, 40)[::-1], LENGTHS[::-1], runner.cache(2))
    got = runner.block(ANCHORS[::-1], LENGTHS[::-1], swapped)
    assert_close("hidden", got.hidden[::-1], states.hidden, FP32_OP)
