"""Float32 matrix products of a warpgroup, from bfloat16 parts in shared memory (see bf16_parts.py)."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float

from pallas_kernels.bf16_parts import TERMS, split
from pallas_kernels.matrix_unit import MatrixUnit
from pallas_kernels.shared_memory import tiled

Ref = Any  # of shared memory, inside a kernel
ROWS = 64  # of a left factor; what a smaller one has is in its shape


def matrix(swizzle: int, *shape: int):
    """Shared memory for bfloat16 matrices. Both factors of a product have one swizzle (bytes), at most their depth."""
    return tiled(jnp.bfloat16, swizzle, *shape)


def write_parts(x: Float[Array, "ROWS N"], part: Callable[[int], Ref]) -> None:
    """Puts the parts of x where the tensor cores, and TMA, find them."""
    for index, value in enumerate(split(x)):
        part(index)[...] = value
    plgpu.commit_smem()


def left_factor(unit: MatrixUnit, x: Float[Array, "ROWS N"], part: Callable[[int], Ref]) -> Callable[[int], Any]:
    """x, in the layout `unit.left`, as `product` takes it: in `part` where the unit reads shared memory."""
    if unit.left_in_registers:
        parts = split(x)
        return lambda index: parts[index]
    write_parts(x, part)
    return part


def product(unit: MatrixUnit, left: Callable[[int], Any], right: Callable[[int], Ref]) -> Float[Array, "rows columns"]:
    """left @ right in float32; each is given by its parts."""
    return unit.multiply(*[(left(i), right(j)) for i, j in TERMS])


def stacked(ref: Ref, rows: int, used: int | None = None) -> Callable[[int], Ref]:
    """The parts of a matrix that lie one below the other, `rows` apart; the first `used` rows of each."""
    return lambda part: ref.at[pl.ds(part * rows, rows if used is None else used)]


def transposed(parts: Callable[[int], Ref]) -> Callable[[int], Ref]:
    return lambda part: parts(part).T
