"""The loop over K: loads run ahead of the products through a ring of buffers."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.matrix_unit import MatrixUnit
from pallas_kernels.skinny_matmul.operands import BLOCK


def stream(
    unit: MatrixUnit,
    load: Callable[[Any, Any, Any], None],
    operands: Callable[[Any], Sequence[Sequence[tuple[Any, Any]]]],
    full: Any,
    *,
    shapes: Sequence[int],
    steps: int,
    stages: int,
    rows: int = BLOCK,
    in_flight: int = 0,
    free: Any = None,
    loads: Any = True,
) -> tuple[jax.Array, ...]:
    """Sums of products over all steps, one [rows, columns] float32 array for each number of columns in `shapes`.

    `load(step, slot, barrier)` starts the copies of a step into a slot of the ring. `operands(slot)` gives, for each
    sum, the (a, b) pairs whose products a @ b one step adds. `full` has a barrier per stage with as many arrivals as
    `load` makes copies. A slot is filled again once its products are finished; those of the newest `in_flight` steps
    may still run then.

    The warpgroup that multiplies also loads: up to `stages` loads are in the air before the first product, which covers
    a block's whole share of the weights or nearly so, and a producer of its own would have nothing to do.

    Where several warpgroups multiply with the same slots, `loads` says whether this one loads for all of them, and
    `free` has a barrier per stage with as many arrivals as there are warpgroups: a slot is filled again once all of
    them have finished with it.
    """
    stages = min(stages, steps)
    in_flight = min(in_flight, stages - 1)

    def fill(step, slot):
        if free is None:
            load(step, slot, full.at[slot])
        else:
            pl.when(loads)(lambda: load(step, slot, full.at[slot]))

    def refill(step, slot):
        if free is not None:
            plgpu.barrier_arrive(free.at[slot])
            pl.when(loads)(lambda: plgpu.barrier_wait(free.at[slot]))
        fill(step, slot)

    for step in range(stages):
        fill(jnp.int32(step), jnp.int32(step))

    def arrived(step):
        slot = lax.rem(step, stages)
        plgpu.barrier_wait(full.at[slot])
        return operands(slot)

    def finished(step):
        @pl.when((step >= 0) & (step + stages < steps))
        def _():
            refill(step + stages, lax.rem(step, stages))

    return unit.accumulate(steps, arrived, shapes, rows=rows, finished=finished, in_flight=in_flight)
