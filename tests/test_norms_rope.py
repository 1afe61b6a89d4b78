"""The norms and the rotary embedding against their formulas in float64."""

import jax.numpy as jnp
import numpy as np
import pytest

from dspine_jax.norms import rms_norm, rms_norm_gated, rms_norm_one_plus
from pallas_kernels.gated_delta import l2_norm
from pallas_kernels.rope import Rope
from tests.tolerances import BF16_OP, FP32_OP, FP32_ROPE, FP32_SCORE, assert_close

EPS = 1e-2  # large enough that a wrong place for it shows


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def unit(x, eps=EPS):
    x = x.astype(np.float64)
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)


X, W, Z = draw(3, 5, 24), draw(24, seed=1), draw(3, 5, 24, seed=2)

FORMULAS = {
    "one_plus": (lambda x, w, z: rms_norm_one_plus(x, w, EPS), unit(X) * (1 + W)),
    "plain": (lambda x, w, z: rms_norm(x, w, EPS), unit(X) * W),
    "gated": (lambda x, w, z: rms_norm_gated(x, w, z, EPS), unit(X) * W * Z / (1 + np.exp(-Z.astype(float)))),
}


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize(("dtype", "bound"), [("float32", FP32_OP), ("bfloat16", BF16_OP)])
def test_norm(name, dtype, bound):
    norm, want = FORMULAS[name]
    # The gated norm's weight is float32 in every model.
    w = jnp.asarray(W, dtype="float32" if name == "gated" else dtype)
    got = norm(jnp.asarray(X, dtype=dtype), w, jnp.asarray(Z, dtype=dtype))
    assert got.dtype == dtype
    assert_close(name, got, want, bound)


def test_zero_weight_is_the_identity_scale_of_the_target_norm_only():
    zero = jnp.zeros(24)
    assert_close("one plus", rms_norm_one_plus(jnp.asarray(X), zero, EPS), unit(X), FP32_OP)
    np.testing.assert_array_equal(rms_norm(jnp.asarray(X), zero, EPS), np.zeros_like(X))


def test_small_offsets_of_the_target_norm_survive_bfloat16():
    """1 + w is formed in float32: in bfloat16 an offset of 2^-9 would vanish."""
    x, w = jnp.ones((1, 24), jnp.bfloat16), jnp.full(24, 2.0**-9, jnp.bfloat16)
    got = rms_norm_one_plus(1000 * x, w, 1e-6) - rms_norm_one_plus(1000 * x, -3 * w, 1e-6)
    np.testing.assert_array_equal(got, np.full((1, 24), 2.0**-7))


def test_l2_norm():
    x = draw(4, 8) * np.array([[1e-3], [1.0], [1e3], [0.0]], np.float32)
    want = x.astype(np.float64) / np.sqrt(np.sum(x.astype(np.float64) ** 2, axis=-1, keepdims=True) + 1e-6)
    got = l2_norm(jnp.asarray(x))
    for row in range(4):
        assert_close(f"row {row}", got[row], want[row], FP32_OP)
    assert l2_norm(jnp.asarray(x, dtype=jnp.bfloat16)).dtype == jnp.float32


@pytest.mark.parametrize("rotary_dim", [4, 8, 16])
def test_rope_turns_pairs_and_passes_the_rest(rotary_dim):
    """Dimensions i and i + rotary_dim/2 are a complex number times exp(i position theta^(-2i/rotary_dim))."""
    x = draw(2, 7, 3, 16)
    positions = np.array([np.arange(7), np.arange(300, 307)], np.int32)
    half = rotary_dim // 2
    angle = positions[..., None, None] * 1e4 ** (-2 * np.arange(half) / rotary_dim)
    turned = (x[..., :half] + 1j * x[..., half:rotary_dim]) * np.exp(1j * angle)
    got = Rope(rotary_dim, 1e4)(jnp.asarray(x), jnp.asarray(positions))
    assert_close("real", got[..., :half], turned.real, FP32_ROPE)
    assert_close("imaginary", got[..., half:rotary_dim], turned.imag, FP32_ROPE)
    np.testing.assert_array_equal(got[..., rotary_dim:], x[..., rotary_dim:])


def test_rope_scores_depend_on_distance_only():
    q, k = draw(1, 1, 1, 16), draw(1, 1, 1, 16, seed=1)

    def score(a, b):
        rotated = (Rope(8, 1e7)(jnp.asarray(x), jnp.full((1, 1), p, jnp.int32)) for x, p in ((q, a), (k, b)))
        left, right = rotated
        return float(jnp.sum(left * right))

    assert score(105, 100) == pytest.approx(score(5, 0), rel=FP32_SCORE)
    assert score(105, 100) != pytest.approx(score(100, 105), rel=10 * FP32_SCORE)
