"""The float8 copy of the output head."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

E4M3_MAX = 448.0


@functools.partial(jax.tree_util.register_dataclass, data_fields=["values", "scale"], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class CoarseHead:
    """head[v] is about values[v] * scale[v]."""

    values: Float[Array, "V H"]  # float8_e4m3fn
    scale: Float[Array, " V"]  # float32, largest magnitude of the row / 448


def quantize_head(head: Float[Array, "V H"]) -> CoarseHead:
    """Row-scaled float8 copy; a zero row keeps scale 1."""
    head = head.astype(jnp.float32)
    largest = jnp.max(jnp.abs(head), axis=-1)
    scale = jnp.where(largest > 0, largest / E4M3_MAX, 1.0)
    # Clipped: rounding of the quotient must not step over the largest finite value, which has no infinity above it.
    values = jnp.clip(head / scale[:, None], -E4M3_MAX, E4M3_MAX)
    return CoarseHead(values=values.astype(jnp.float8_e4m3fn), scale=scale)
