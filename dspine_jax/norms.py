"""The normalisations of the models. They differ in small ways that matter; see each docstring."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.row_norm import RowNorm


def rms_norm_one_plus(x: Float[Array, "... H"], weight: Float[Array, " H"], eps: float) -> Float[Array, "... H"]:
    """Norm of a `qwen3_5` target: the stored weight is the offset from one; the product is in float32, then cast."""
    return RowNorm(weight, eps, "one_plus")(x)


def rms_norm(x: Float[Array, "... H"], weight: Float[Array, " H"], eps: float) -> Float[Array, "... H"]:
    """Norm of the drafter and of a `qwen3` target: plain weight, applied after the cast to the input's dtype."""
    return RowNorm(weight, eps, "plain")(x)


def target_norm(weight: Float[Array, " H"], eps: float, weight_is_offset: bool) -> RowNorm:
    """One of the two, by the meaning of the target's weights."""
    return RowNorm(weight, eps, "one_plus" if weight_is_offset else "plain")


def rms_norm_gated(
    x: Float[Array, "... D"], weight: Float[Array, " D"], gate: Float[Array, "... D"], eps: float
) -> Float[Array, "... D"]:
    """Output norm of the gated delta net: plain weight, normalised before the SiLU gate; in the gate's dtype."""
    x = x.astype(jnp.float32)
    x = x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + eps)
    y = weight * x.astype(gate.dtype).astype(jnp.float32)
    return (y * jax.nn.silu(gate.astype(jnp.float32))).astype(gate.dtype)
