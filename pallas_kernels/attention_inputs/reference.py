"""The same formulas in float32, rounded once."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pallas_kernels.attention_inputs.heads import Heads
from pallas_kernels.attention_inputs.xla import rotate_xla
from pallas_kernels.rope import Rope


def rotate_reference(heads: Heads, positions: Int[Array, "B T"], rope: Rope) -> Float[Array, "B T N D"]:
    """The heads of one projection, in its dtype."""
    wide = jax.tree.map(lambda x: x.astype(jnp.float32), heads)
    return rotate_xla(wide, positions, rope).astype(heads.rows.dtype)
