"""Building blocks that target and drafter share.

Dimension letters used everywhere: B batch, T rows of a chunk or block, S context positions, H hidden, D head
dimension, N query heads, K key/value heads, V vocabulary, C code width, M message width, L layers, F tap features.
"""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from pallas_kernels.implementation import Implementation
from pallas_kernels.projection import project_gated, project_norm, project_residual
from pallas_kernels.row_norm import RowNorm


class Linear(nnx.Module):
    """The checkpoint's [out, in] weight of a projection without bias; `pallas_kernels.projection` multiplies by it."""

    def __init__(self, out_features: int, in_features: int, dtype: jnp.dtype):
        self.weight = nnx.Param(jnp.zeros((out_features, in_features), dtype))


class Scale(nnx.Module):
    """The weight vector of a norm; the formula is chosen where it is applied."""

    def __init__(self, size: int, dtype: jnp.dtype):
        self.weight = nnx.Param(jnp.zeros((size,), dtype))


class Embedding(nnx.Module):
    """A table [rows, width] read by index."""

    def __init__(self, rows: int, width: int, dtype: jnp.dtype):
        self.weight = nnx.Param(jnp.zeros((rows, width), dtype))

    def __call__(self, ids: Int[Array, "..."]) -> Float[Array, "... W"]:
        return self.weight[...][ids]


class GatedMLP(nnx.Module):
    """residual + down(silu(gate(x)) * up(x))."""

    def __init__(self, hidden_size: int, intermediate_size: int, dtype: jnp.dtype):
        self.gate_proj = Linear(intermediate_size, hidden_size, dtype)
        self.up_proj = Linear(intermediate_size, hidden_size, dtype)
        self.down_proj = Linear(hidden_size, intermediate_size, dtype)

    def __call__(
        self, x: Float[Array, "... H"], residual: Float[Array, "... H"], implementation: Implementation | None
    ) -> Float[Array, "... H"]:
        inner, down = self._inner(x, implementation), self.down_proj.weight[...]
        return project_residual(inner, down, residual, implementation=implementation)

    def with_norm(
        self,
        x: Float[Array, "... H"],
        residual: Float[Array, "... H"],
        norm: RowNorm,
        implementation: Implementation | None,
    ) -> tuple[Float[Array, "... H"], Float[Array, "... H"]]:
        """The result, and the norm of it that is read next."""
        inner, down = self._inner(x, implementation), self.down_proj.weight[...]
        return project_norm(inner, down, residual, norm, implementation=implementation)

    def _inner(self, x, implementation):
        return project_gated(x, self.gate_proj.weight[...], self.up_proj.weight[...], implementation=implementation)
