"""Plain XLA forms. Each product is rounded to the rows' type before anything else is made of it, as torch does."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.row_norm import RowNorm


def project_xla(x: Float[Array, "T K"], weight: Float[Array, "O K"]) -> Float[Array, "T O"]:
    """x W^T in x's dtype.

    One flat row dimension: a product over two row dimensions makes the weight's gradient transpose its input.
    """
    return jnp.einsum("ri,oi->ro", x, weight)


def project_gated_xla(
    x: Float[Array, "T K"], gate: Float[Array, "O K"], up: Float[Array, "O K"]
) -> Float[Array, "T O"]:
    """silu(x gate^T) * (x up^T); the SiLU in float32, then rounded."""
    silu = jax.nn.silu(project_xla(x, gate).astype(jnp.float32)).astype(x.dtype)
    return silu * project_xla(x, up)


def project_norm_xla(
    x: Float[Array, "T K"], weight: Float[Array, "H K"], residual: Float[Array, "T H"] | None, norm: RowNorm | None
) -> tuple[Float[Array, "T H"], Float[Array, "T H"] | None]:
    """residual + x W^T, and its norm."""
    total = project_xla(x, weight)
    if residual is not None:
        total = residual + total
    return total, None if norm is None else norm(total)
