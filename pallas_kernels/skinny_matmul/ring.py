"""The loop over K: loads run ahead of the products through a ring of buffers."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.skinny_matmul.operands import BLOCK


def stream(
    load: Callable[[Any, Any, Any], None],
    operands: Callable[[Any], Sequence[Sequence[tuple[Any, Any]]]],
    full: Any,
    *,
    shapes: Sequence[int],
    steps: int,
    stages: int,
    in_flight: int = 0,
    free: Any = None,
    loads: Any = True,
) -> tuple[jax.Array, ...]:
    """Sums of products over all steps, one [64, columns] float32 array for each number of columns in `shapes`.

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

    def run(*accumulators):
        for step in range(stages):
            fill(jnp.int32(step), jnp.int32(step))

        @pl.loop(0, steps)
        def _(step):
            slot = lax.rem(step, stages)
            plgpu.barrier_wait(full.at[slot])
            products = [(acc, a, b) for acc, pairs in zip(accumulators, operands(slot), strict=True) for a, b in pairs]
            for product in products:
                plgpu.wgmma(*product)
            plgpu.wgmma_wait(in_flight * len(products))
            done = step - in_flight  # the newest step whose products are all finished

            @pl.when((done >= 0) & (done + stages < steps))
            def _():
                refill(done + stages, lax.rem(done, stages))

        return tuple(acc[...] for acc in accumulators)  # reading waits for the rest

    return pl.run_scoped(run, *[plgpu.WGMMAAccumulatorRef((BLOCK, columns)) for columns in shapes])
