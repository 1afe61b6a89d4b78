"""The tail of one block per slot at 27B sizes."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.bridge import BridgeGates
from pallas_kernels.tail import tail_scores
from tests.kernels.machine_code import Program

HIDDEN, CODE, MESSAGE, POSITIONS, CHOICES, EPS = 5120, 1024, 512, 15, 16, 1e-6


def _program(slots: int) -> Program:
    def bf16(*shape: int) -> Any:
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16)

    def f32(*shape: int) -> Any:
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    rows, projection = (slots, POSITIONS), bf16(MESSAGE, CODE)
    positions = slots * POSITIONS
    weights = HIDDEN * MESSAGE + 3 * MESSAGE * CODE + MESSAGE + HIDDEN
    gathered = positions * CHOICES * (CODE + HIDDEN)
    return Program(
        op="tail_scores",
        label=f"{slots * (POSITIONS + 1)} rows",
        function=functools.partial(tail_scores, eps=EPS, implementation="mosaic_gpu"),
        shapes=(
            bf16(*rows, HIDDEN),
            f32(*rows, 1),
            f32(*rows, CODE),
            bf16(*rows, CHOICES, CODE),
            bf16(*rows, CHOICES, HIDDEN),
            bf16(HIDDEN, MESSAGE),
            bf16(HIDDEN),
            BridgeGates(projection, projection, projection, bf16(MESSAGE)),
        ),
        bytes_moved=2 * (weights + gathered + positions * HIDDEN) + 4 * positions * (CODE + 1 + CHOICES**2),
    )


PROGRAMS = tuple(_program(slots) for slots in (1, 2, 4, 8))
