"""The float8 copy of the head, and the two-pass search."""

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.retrieval import quantize_head, retrieve, retrieve_direct, retrieve_reference
from tests.oracle_drafter import wide
from tests.tolerances import FP8_RECALL, FP32_OP, assert_close

V, H = 300, 32


def draw(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


@pytest.fixture(scope="module")
def head():
    """Rows of very different lengths, as rows of rare tokens have."""
    return draw(V, H) * jnp.asarray(np.random.default_rng(1).uniform(1e-4, 1e3, (V, 1)), jnp.float32)


def test_scale_is_the_largest_magnitude_over_448(head):
    coarse = quantize_head(head)
    largest = np.abs(np.asarray(head)).max(axis=1)
    assert_close("scale", coarse.scale, largest / 448, FP32_OP)
    values = np.asarray(coarse.values.astype(jnp.float32))
    at = np.abs(np.asarray(head)).argmax(axis=1)
    np.testing.assert_array_equal(np.abs(values[np.arange(V), at]), 448)


def test_each_entry_is_rounded_once(head):
    """Three bits of mantissa: half a unit is 2^-4 of a normal value, and 2^-10 below the smallest one, 2^-6."""
    coarse = quantize_head(head)
    values = np.asarray(coarse.values.astype(jnp.float32)).astype(np.float64)
    exact = np.asarray(head).astype(np.float64) / np.asarray(coarse.scale)[:, None]
    allowed = np.maximum(np.abs(exact) * 2.0**-4, 2.0**-10) * (1 + FP32_OP)
    assert (np.abs(values - exact) <= allowed).all()


def test_powers_of_two_move_to_the_scale_exactly(head):
    plain, scaled = quantize_head(head), quantize_head(head * 2.0**9)
    np.testing.assert_array_equal(scaled.values.astype(jnp.float32), plain.values.astype(jnp.float32))
    np.testing.assert_array_equal(scaled.scale, plain.scale * 2.0**9)


def test_rows_are_scaled_on_their_own(head):
    other = quantize_head(head.at[3].multiply(1e3))
    rest = np.arange(V) != 3
    plain = quantize_head(head)
    np.testing.assert_array_equal(
        np.asarray(other.values.astype(jnp.float32))[rest], np.asarray(plain.values.astype(jnp.float32))[rest]
    )


def test_a_zero_row_scores_zero():
    coarse = quantize_head(draw(4, H).at[2].set(0.0))
    assert float(coarse.scale[2]) == 1.0
    assert not np.asarray(coarse.values[2].astype(jnp.float32)).any()


def test_bfloat16_head_is_quantised_like_its_float32_copy(head):
    narrow = head.astype(jnp.bfloat16)
    got, want = quantize_head(narrow), quantize_head(narrow.astype(jnp.float32))
    np.testing.assert_array_equal(got.values.astype(jnp.float32), want.values.astype(jnp.float32))
    np.testing.assert_array_equal(got.scale, want.scale)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_planted_winners_are_found_first(dtype):
    """h points along one row of a head with rows of equal length: that row wins by far."""
    head = draw(V, H, seed=2)
    head = (head / jnp.linalg.norm(head, axis=1, keepdims=True)).astype(dtype)
    planted = np.random.default_rng(3).permutation(V)[:60].reshape(4, 15)
    h = head[planted] * jnp.asarray(5.0, dtype)
    ids, scores = retrieve(h, head, quantize_head(head), coarse=32, keep=8)
    assert ids.shape == scores.shape == (4, 15, 8)
    np.testing.assert_array_equal(ids[..., 0], planted)
    assert (np.diff(np.asarray(scores), axis=-1) <= 0).all()


def test_scores_are_those_of_the_original_head(head):
    """The float8 pass chooses, the second pass scores."""
    h = draw(5, H, seed=4)
    ids, scores = retrieve(h, head, quantize_head(head), coarse=64, keep=16)
    want = np.einsum("rh,rkh->rk", wide(h), wide(head)[np.asarray(ids)])
    assert_close("scores", scores, want, FP32_OP)


def test_direct_equals_the_reference_and_float64(head):
    h = draw(2, 3, H, seed=5)
    ids, scores = retrieve_direct(h, head, keep=16)
    want_ids, want_scores = retrieve_reference(h, head, keep=16)
    np.testing.assert_array_equal(ids, want_ids)
    np.testing.assert_array_equal(scores, want_scores)
    exact = wide(h) @ wide(head).T
    np.testing.assert_array_equal(ids, np.argsort(-exact, axis=-1, kind="stable")[..., :16])


@pytest.mark.parametrize("coarse", [V, V + 1000])
def test_a_coarse_pass_that_keeps_all_equals_direct(head, coarse):
    """So does a vocabulary smaller than the number of coarse tokens."""
    h = draw(6, H, seed=6)
    got, want = retrieve(h, head, quantize_head(head), coarse=coarse), retrieve_direct(h, head)
    np.testing.assert_array_equal(got[0], want[0])
    assert_close("scores", got[1], want[1], FP32_OP)


def test_most_of_the_true_best_survive_the_coarse_pass():
    """Not promised, but a coarse pass of 128 among 300 that loses many would be broken."""
    head, h = draw(V, H, seed=7), draw(50, H, seed=8)
    got = np.asarray(retrieve(h, head, quantize_head(head), coarse=128, keep=16)[0])
    want = np.asarray(retrieve_direct(h, head, keep=16)[0])
    kept = np.mean([len(set(a) & set(b)) / 16 for a, b in zip(got, want, strict=True)])
    assert kept > FP8_RECALL


def test_the_lower_id_wins_a_tie():
    head = draw(40, H, seed=9)
    head = head.at[jnp.array([7, 21, 30])].set(head[7])
    h = head[7][None] * 3
    expected = [7, 21, 30]
    assert retrieve_direct(h, head, keep=4)[0][0, :3].tolist() == expected
    assert retrieve_reference(h, head, keep=4)[0][0, :3].tolist() == expected
    assert retrieve(h, head, quantize_head(head), coarse=10, keep=4)[0][0, :3].tolist() == expected
