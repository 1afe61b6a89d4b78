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
) -> tuple[jax.Array, ...]:
    """Sums of products over all steps, one [64, columns] float32 array for each number of columns in `shapes`.

    `load(step, slot, barrier)` starts the copies of a step into a slot of the ring. `operands(slot)` gives, for each
    sum, the (a, b) pairs whose products a @ b one step adds. `full` has a barrier per stage with as many arrivals as
    `load` makes copies. A slot is filled again once its products are finished; those of the newest `in_flight` steps
    may still run then.

    The warpgroup that multiplies also loads: up to `stages` loads are in the air before the first product, which covers
    a block's whole share of the weights or nearly so, and a producer of its own would have nothing to do.
    """
    stages = min(stages, steps)
    in_flight = min(in_flight, stages - 1)

    def run(*accumulators):
        for step in range(stages):
            load(jnp.int32(step), jnp.int32(step), full.at[step])

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
                free = lax.rem(done, stages)
                load(done + stages, free, full.at[free])

        return tuple(acc[...] for acc in accumulators)  # reading waits for the rest

    return pl.run_scoped(run, *[plgpu.WGMMAAccumulatorRef((BLOCK, columns)) for columns in shapes])
