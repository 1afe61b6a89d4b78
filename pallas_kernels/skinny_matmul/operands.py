"""Operands in shared memory, and how many of them fit."""

from typing import Any

import jax.numpy as jnp
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.device import architecture
from pallas_kernels.shared_memory import tiled

BLOCK = 64  # rows of one product
BARRIERS = 2048  # bytes left for barriers and alignment


def swizzle_bytes(columns: int, dtype: Any) -> int:
    """The widest swizzle whose tiles divide a row of `columns`; 0 if none does."""
    row = columns * jnp.dtype(dtype).itemsize
    return next((width for width in (128, 64, 32) if row % width == 0), 0)


def operand(*shape: int, dtype: Any = jnp.bfloat16) -> Any:
    """A buffer [..., rows, columns] of products, columns along K; keeps stored accumulators from bank conflicts too."""
    swizzle = swizzle_bytes(shape[-1], dtype)
    if not swizzle:
        return plgpu.SMEM(shape, dtype)
    return tiled(dtype, swizzle, *shape)


def stages_that_fit(step_bytes: int, *, reserved: int, at_most: int) -> int:
    """How many steps of `step_bytes` a block's shared memory holds beside `reserved` bytes."""
    return min(at_most, (architecture().shared_memory_bytes - BARRIERS - reserved) // step_bytes)
