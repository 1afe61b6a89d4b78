"""The formulas in float32."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.row_norm import RowNorm


def project_reference(x: Float[Array, "T K"], weight: Float[Array, "O K"]) -> Float[Array, "T O"]:
    """x W^T, float32."""
    with jax.default_matmul_precision("highest"):
        return x.astype(jnp.float32) @ weight.astype(jnp.float32).T


def project_gated_reference(
    x: Float[Array, "T K"], gate: Float[Array, "O K"], up: Float[Array, "O K"]
) -> Float[Array, "T O"]:
    """silu(x gate^T) * (x up^T), rounded once to x's dtype."""
    return (jax.nn.silu(project_reference(x, gate)) * project_reference(x, up)).astype(x.dtype)


def project_norm_reference(
    x: Float[Array, "T K"], weight: Float[Array, "H K"], residual: Float[Array, "T H"] | None, norm: RowNorm | None
) -> tuple[Float[Array, "T H"], Float[Array, "T H"] | None]:
    """residual + x W^T rounded to x's dtype, and the norm of that."""
    total = project_reference(x, weight)
    if residual is not None:
        total = residual.astype(jnp.float32) + total
    total = total.astype(x.dtype)
    return total, None if norm is None else norm(total)
