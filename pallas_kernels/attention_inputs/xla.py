"""Norm, rotation and stores as XLA makes them: everything rounds to the rows' type where torch rounds."""

from jaxtyping import Array, Float, Int

from pallas_kernels.attention_inputs.heads import Heads
from pallas_kernels.rope import Rope


def rotate_xla(heads: Heads, positions: Int[Array, "B T"], rope: Rope) -> Float[Array, "B T N D"]:
    """The heads of one projection."""
    return rope(heads.norm(heads.split), positions) if heads.norm else heads.split


def store_xla(
    cache: Float[Array, "R K D"], at: Int[Array, "B T"], heads: Float[Array, "B T K D"]
) -> Float[Array, "R K D"]:
    """The cache with the heads of each row in its place; a row with the place R is dropped."""
    return cache.at[at].set(heads.astype(cache.dtype), mode="drop")
