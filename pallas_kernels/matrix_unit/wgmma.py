"""Hopper's warpgroup products: asynchronous, accumulators in registers, operands in shared memory."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float

Ref = Any  # of shared memory, inside a kernel


@dataclasses.dataclass(frozen=True)
class Wgmma:
    """The left factor of a product has 64 rows."""

    widest = 256  # columns of a product that leave registers for anything else
    left = plgpu.Layout.WGMMA  # of the values that become a left factor
    left_in_registers = False  # it is read from shared memory

    def block_rows(self, rows: int, columns: Sequence[int]) -> int:
        """Rows of an operand of `accumulate` for 1 to 64 `rows`, whose sums are as wide as `columns`."""
        del rows, columns
        return 64

    def columns_step(self, rows: int) -> int:
        """What the columns have to be a multiple of for the fewest rows per operand."""
        del rows
        return 8

    def multiply(self, *pairs: tuple[Ref, Ref]) -> Float[Array, "64 N"]:
        """The sum of a @ b over the pairs, in float32. The operands are free afterwards."""

        def products(accumulator):
            for a, b in pairs:
                plgpu.wgmma(accumulator, a, b)
            return accumulator[...]  # waits for all of them

        return pl.run_scoped(products, _accumulator(*pairs[0]))

    def add(self, total: Float[Array, "64 N"], a: Any, b: Ref) -> Float[Array, "64 N"]:
        """total + a @ b in total's registers; `a` may be an array. The operands are free afterwards."""

        def product(accumulator):
            plgpu.wgmma(accumulator, a, b)

        return pl.run_state(product)(plgpu.WGMMAAccumulatorRef.init(total))  # pyright: ignore[reportReturnType]

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
        """Sums over `steps`, one [rows, N] float32 array for each N in `columns`.

        `operands(step)` awaits a step's operands and gives the pairs that each sum takes from it. `finished(step)` is
        called once no product reads them any more, `in_flight` steps late; for no step, its number is negative.
        """

        def run(*accumulators):
            @pl.loop(0, steps)
            def _(step):
                sums = zip(accumulators, operands(step), strict=True)
                products = [(accumulator, a, b) for accumulator, pairs in sums for a, b in pairs]
                for product in products:
                    plgpu.wgmma(*product)
                plgpu.wgmma_wait(in_flight * len(products))
                finished(step - in_flight)

            return tuple(accumulator[...] for accumulator in accumulators)  # reading waits for the rest

        return pl.run_scoped(run, *[plgpu.WGMMAAccumulatorRef((rows, n)) for n in columns])


def _accumulator(a: Ref, b: Ref) -> Any:
    return plgpu.WGMMAAccumulatorRef((a.shape[0], b.shape[1]))
