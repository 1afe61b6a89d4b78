"""The layout of shared memory that the tensor cores and TMA agree on."""

from typing import Any

import jax.numpy as jnp
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.typing import DTypeLike

LINES = 8  # of a tile: a TMA copy wants arrays of whole tiles


def tiled(dtype: DTypeLike, swizzle: int, *shape: int) -> Any:
    """A buffer whose lines of `swizzle` bytes lie so that rows and columns can be read without conflicts."""
    return plgpu.SMEM(shape, dtype, transforms=tile_transforms(dtype, swizzle))


def tile_transforms(dtype: DTypeLike, swizzle: int) -> tuple[Any, ...]:
    """Tiles of eight lines of `swizzle` bytes, swizzled."""
    tiling = plgpu.TilingTransform((LINES, swizzle // jnp.dtype(dtype).itemsize))  # pyright: ignore[reportAbstractUsage]
    return tiling, plgpu.SwizzleTransform(swizzle)  # pyright: ignore[reportAbstractUsage]
