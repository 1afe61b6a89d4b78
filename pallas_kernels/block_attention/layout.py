"""How tiles lie in registers and shared memory, and how a warpgroup's 64 rows map to query heads."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.block_attention.tiles import Geometry
from pallas_kernels.shared_memory import tile_transforms

Ref = Any  # of an array in global or shared memory; the comments beside the names give its shape
# What the tensor cores read, for 2-byte elements.
SWIZZLE = tile_transforms(jnp.bfloat16, 128)
TILE = plgpu.Layout.WGMMA  # registers of a [64, n] tile
ROW = plgpu.Layout.WGMMA.reduce(1)  # registers of one number per row of it
# Base 2 logarithm of the weights' sum of a row that has seen nothing, and the largest score before the first one.
UNSEEN = -1e30


def constant(value: float, shape: tuple[int, ...], layout: Any) -> jax.Array:
    """A float32 array in registers."""
    return plgpu.layout_cast(jnp.full(shape, value, jnp.float32), layout)


def head_rows(consumer: jax.Array, geometry: Geometry) -> Iterator[tuple[jax.Array, Any]]:
    """The query heads (of one key/value head) of a consumer and their rows in its tile: head after head.

    The last consumer may have room for heads that do not exist, numbered `geometry.groups` and up.
    """
    for j in range(geometry.heads_per_consumer):
        yield consumer * geometry.heads_per_consumer + j, pl.ds(j * geometry.rows, geometry.rows)


def load_heads(
    source_g: Ref,  # [T, N, d]
    tile_s: Ref,  # [64, d]
    loaded: Ref,
    kv_head: jax.Array,
    consumer: jax.Array,
    geometry: Geometry,
) -> None:
    """Starts `geometry.heads_per_consumer` copies: of a consumer's query heads to their rows of its tile."""
    for head, rows in head_rows(consumer, geometry):
        # Heads past the last are never stored; a copy of the last one keeps their rows finite.
        n = kv_head * geometry.groups + jnp.minimum(head, geometry.groups - 1)
        plgpu.copy_gmem_to_smem(source_g.at[:, n], tile_s.at[rows], loaded)


def store_heads(
    tile_s: Ref,  # [64, d]
    output_g: Ref,  # [T, N, d]
    kv_head: jax.Array,
    consumer: jax.Array,
    geometry: Geometry,
) -> None:
    """Starts the copies of a consumer's tile to the rows of its query heads."""
    for head, rows in head_rows(consumer, geometry):

        @pl.when(head < geometry.groups)
        def _(head=head, rows=rows):
            plgpu.copy_smem_to_gmem(tile_s.at[rows], output_g.at[:, kv_head * geometry.groups + head])
