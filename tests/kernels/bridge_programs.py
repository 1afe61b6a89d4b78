"""The bridge of one layer at 27B sizes."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.bridge import BridgeGates, bridge
from tests.kernels.machine_code import Program

HIDDEN, CODE, MESSAGE, BLOCK_ROWS, EPS = 5120, 1024, 512, 16, 1e-6


def _program(slots: int) -> Program:
    def bf16(*shape: int) -> Any:
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16)

    rows, projection = slots * BLOCK_ROWS, bf16(MESSAGE, CODE)
    weights = CODE * HIDDEN + HIDDEN * MESSAGE + 3 * MESSAGE * CODE + MESSAGE
    return Program(
        op="bridge",
        label=f"{rows} rows",
        function=functools.partial(bridge, eps=EPS, implementation="mosaic_gpu"),
        shapes=(
            bf16(slots, BLOCK_ROWS, HIDDEN),
            jax.ShapeDtypeStruct((slots, CODE), jnp.float32),
            bf16(CODE, HIDDEN),
            bf16(HIDDEN, MESSAGE),
            BridgeGates(projection, projection, projection, bf16(MESSAGE)),
        ),
        bytes_moved=2 * weights + 2 * 2 * rows * HIDDEN + 4 * slots * CODE + 4 * rows * (CODE + 1),
    )


PROGRAMS = tuple(_program(slots) for slots in (1, 2, 4, 8))
