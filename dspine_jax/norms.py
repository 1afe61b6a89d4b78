"""The normalisations of the models. They differ in small ways that matter; see each docstring."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def _normalise(x: Array, eps: float) -> Array:
    x = x.astype(jnp.float32)
    return x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + eps)


def rms_norm_one_plus(x: Float[Array, "... H"], weight: Float[Array, " H"], eps: float) -> Float[Array, "... H"]:
    """Norm of a `qwen3_5` target: the stored weight is the offset from one; the product is in float32, then cast."""
    return (_normalise(x, eps) * (1.0 + weight.astype(jnp.float32))).astype(x.dtype)


def rms_norm(x: Float[Array, "... H"], weight: Float[Array, " H"], eps: float) -> Float[Array, "... H"]:
    """Norm of the drafter and of a `qwen3` target: plain weight, applied after the cast to the input's dtype."""
    return weight.astype(x.dtype) * _normalise(x, eps).astype(x.dtype)


def target_norm(norms_are_offsets: bool) -> Callable[[Array, Array, float], Array]:
    """The target's norm, by the meaning of its stored weights."""
    return rms_norm_one_plus if norms_are_offsets else rms_norm


def rms_norm_gated(
    x: Float[Array, "... D"], weight: Float[Array, " D"], gate: Float[Array, "... D"], eps: float
) -> Float[Array, "... D"]:
    """Output norm of the gated delta net: plain weight, normalised before the SiLU gate; in the gate's dtype."""
    y = weight * _normalise(x, eps).astype(gate.dtype).astype(jnp.float32)
    return (y * jax.nn.silu(gate.astype(jnp.float32))).astype(gate.dtype)


def l2_norm(x: Float[Array, "... K"]) -> Float[Array, "... K"]:
    """Unit length in float32; 1e-6 is added to the sum of squares, so a zero vector stays zero."""
    x = x.astype(jnp.float32)
    return x * jax.lax.rsqrt(jnp.sum(jnp.square(x), axis=-1, keepdims=True) + 1e-6)
