"""The root mean square norms of the two models: over the last axis, in float32, rounded as their checkpoints want."""

import dataclasses
import functools
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Form = Literal["one_plus", "plain"]


@functools.partial(jax.tree_util.register_dataclass, data_fields=["weight"], meta_fields=["eps", "form"])
@dataclasses.dataclass(frozen=True)
class RowNorm:
    """A norm of rows, or of the heads of rows.

    "one_plus": the weight is the offset from one, and the product is taken in float32 (a `qwen3_5` target).
    "plain": the weight multiplies what is already rounded to the rows' type (the drafter, and a `qwen3` target).
    """

    weight: Float[Array, " H"]
    eps: float
    form: Form

    def __call__(self, x: Float[Array, "... H"]) -> Float[Array, "... H"]:
        """The norm of each row, in x's dtype."""
        scale = jax.lax.rsqrt(jnp.mean(jnp.square(x.astype(jnp.float32)), axis=-1, keepdims=True) + self.eps)
        return scaled(x, scale, self.weight, self.form)


def scaled(x: Array, scale: Array, weight: Array, form: Form) -> Array:
    """x times its rows' scale and the weight, rounded as the form says; also used inside kernels."""
    x32 = x.astype(jnp.float32) * scale
    if form == "one_plus":
        return (x32 * (1.0 + weight.astype(jnp.float32))).astype(x.dtype)
    return weight.astype(x.dtype) * x32.astype(x.dtype)
