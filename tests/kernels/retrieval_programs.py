"""The whole retrieval at 27B sizes: 1, 2, 4 and 8 blocks of 15 proposals."""

import functools

import jax
import jax.numpy as jnp

from pallas_kernels.retrieval import CoarseHead, retrieve
from tests.kernels.machine_code import Program

V, H, PROPOSALS, COARSE, KEEP = 248_320, 5_120, 15, 128, 16


def _program(blocks: int) -> Program:
    queries = blocks * PROPOSALS
    head_bytes = V * H + 4 * V  # float8 and a float32 scale
    exact_bytes = 2 * queries * COARSE * H  # the gathered rows of the bfloat16 head
    ends = 2 * queries * H + 8 * queries * KEEP
    return Program(
        op="retrieval",
        label=f"{16 * blocks} rows",
        function=functools.partial(retrieve, coarse=COARSE, keep=KEEP, implementation="mosaic_gpu"),
        shapes=(
            jax.ShapeDtypeStruct((blocks, PROPOSALS, H), jnp.bfloat16),
            jax.ShapeDtypeStruct((V, H), jnp.bfloat16),
            CoarseHead(
                values=jax.ShapeDtypeStruct((V, H), jnp.float8_e4m3fn),  # pyright: ignore[reportArgumentType]
                scale=jax.ShapeDtypeStruct((V,), jnp.float32),  # pyright: ignore[reportArgumentType]
            ),
        ),
        bytes_moved=head_bytes + exact_bytes + ends,
    )


PROGRAMS = tuple(_program(blocks) for blocks in (1, 2, 4, 8))
