"""Products warp by warp, on every GPU since Hopper: synchronous, operands and sums in registers."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float

Ref = Any  # of shared memory, inside a kernel
# What is read of an operand at a time, so that it fits into registers: a line of swizzled shared memory along K.
LINE_BYTES = 128
COLUMNS = 64
BLOCKS = (16, 32, 64)


@dataclasses.dataclass(frozen=True)
class Mma:
    """Four warps share a product: those of 64 rows have 16 each, those of fewer share the columns too."""

    widest = 64  # columns of a product that leave registers for anything else
    left = plgpu.Layout.MMA_LHS(jnp.bfloat16)  # of the values that become a left factor of 64 rows
    left_in_registers = True

    def block_rows(self, rows: int, columns: Sequence[int]) -> int:
        """As `Wgmma.block_rows`: fewer rows are less work, where the columns can be shared evenly."""
        fits = [size for size in BLOCKS if rows <= size and not any(n % _step(size) for n in columns)]
        return fits[0] if fits else BLOCKS[-1]

    def columns_step(self, rows: int) -> int:
        """As `Wgmma.columns_step`."""
        return _step(self.block_rows(rows, ()))

    def multiply(self, *pairs: tuple[Any, Ref]) -> Float[Array, "M N"]:
        """The sum of a @ b over the pairs, in float32; see `add`."""
        a, b = pairs[0]
        return self._add_all(_zeros(a.shape[0], b.shape[1]), pairs)

    def add(self, total: Float[Array, "M N"], a: Any, b: Ref) -> Float[Array, "M N"]:
        """total + a @ b; `a` may be an array, in the layout `left`. The operands are free afterwards."""
        return self._add_all(total, [(a, b)])

    def _add_all(self, total, pairs):
        for index, (a, b) in enumerate(pairs):
            total = self._add(total, a, b)
            # A fence: copies may overwrite what has been read. It also keeps the compiler from reading the operands of
            # the next products already, and spilling them; right factors alone it may read.
            if index == len(pairs) - 1 or not isinstance(a, jax.Array):
                plgpu.commit_smem()
        return total

    def _add(self, total, a, b):
        depth, width = b.shape
        dtype = jnp.dtype(a.dtype)
        held = isinstance(a, jax.Array)
        step = depth if held else math.gcd(depth, LINE_BYTES // dtype.itemsize)
        layouts = plgpu.Layout.MMA_LHS, plgpu.Layout.MMA_RHS, plgpu.Layout.MMA_ACC
        lhs, rhs, acc = (layout(dtype, m_warps=a.shape[0] // 16) for layout in layouts)
        slices = [pl.ds(n, min(COLUMNS, width - n)) for n in range(0, width, COLUMNS)]

        def add_step(k, sums):
            along = pl.ds(k * step, step)
            left = a if held else plgpu.load(a.at[:, along], layout=lhs, optimized=False)
            rights = [plgpu.load(b.at[along, here], layout=rhs, optimized=False) for here in slices]
            return tuple(plgpu.mma(part, left, right) for part, right in zip(sums, rights, strict=True))

        sums = tuple(plgpu.layout_cast(total[:, here.start : here.start + here.size], acc) for here in slices)
        sums = add_step(0, sums) if held else lax.fori_loop(0, depth // step, add_step, sums)
        return jnp.concatenate([plgpu.layout_cast(part, _layout(len(part))) for part in sums], axis=1)

    def accumulate(
        self,
        steps: int,
        operands: Callable[[Any], Sequence[Sequence[tuple[Ref, Ref]]]],
        columns: Sequence[int],
        *,
        rows: int,
        finished: Callable[[Any], None],
        in_flight: int = 0,
    ) -> tuple[jax.Array, ...]:
        """As `Wgmma.accumulate`; no step is in flight."""
        del in_flight

        def run(step, sums):
            added = tuple(self._add_all(total, pairs) for total, pairs in zip(sums, operands(step), strict=True))
            finished(step)
            return added

        return lax.fori_loop(0, steps, run, tuple(_zeros(rows, n) for n in columns))


def _zeros(rows: int, columns: int) -> Array:
    return plgpu.layout_cast(jnp.zeros((rows, columns), jnp.float32), _layout(rows))


def _layout(rows: int) -> Any:
    """Of a sum: with 64 rows the one that all kernels work in."""
    return plgpu.Layout.WGMMA if rows == 64 else plgpu.Layout.MMA_ACC(jnp.bfloat16, m_warps=rows // 16)


def _step(rows: int) -> int:
    """The narrowest product of that many rows: 8 columns for each warp that has its own."""
    return 8 * (64 // rows)
