"""Registers in which the rows of a tile [16, n] stay within a warp: a sum along a row needs no other warp."""

from typing import Any

import jax
from jax.experimental.pallas import mosaic_gpu as plgpu

ROWS = 16  # of a tile
STEP = 32  # columns: a row's length is a multiple of it
# Eight lanes share a row.
BY_ROW = plgpu.Layout.TILED(
    plgpu.Tiling(((ROWS, STEP), (4, STEP), (4,))), warp_dims=(-5,), lane_dims=(-3, -2), vector_dim=-1
)
COLUMNS = BY_ROW.reduce(0)  # one number per column of it
# A reduction must stay within a warp: without a buffer any other does not compile.
NO_SCRATCH = plgpu.CompilerParams(reduction_scratch_bytes=0)


def load_tile(ref: Any, layout: Any) -> jax.Array:
    """A tile, or what belongs to its columns, from shared or global memory."""
    return plgpu.load(ref, layout=layout, optimized=False)
