"""Block attention at the sizes of the 27B pair."""

import functools
import math

import jax
import jax.numpy as jnp

from pallas_kernels.block_attention import paged_block_attention, ring_block_attention
from tests.kernels.machine_code import Program

ROWS = 16  # new rows per slot
BATCHES = (1, 2, 4, 8)
PAGE = 64
CONTEXT = 32_768  # positions of each slot
WINDOW = 8_192
BF16, INT32 = jnp.bfloat16, jnp.int32


def _bytes(*shapes: jax.ShapeDtypeStruct) -> int:
    return sum(math.prod(shape.shape) * shape.dtype.itemsize for shape in shapes)


def _gated(*operands, **options):
    *others, gate = operands
    return paged_block_attention(*others, gate=gate, **options)


def _paged(slots: int) -> Program:
    """A full-attention layer of the target: 24 query heads over 4 of 256, gates behind the queries."""
    q = jax.ShapeDtypeStruct((slots, ROWS, 24, 256), BF16)
    pages = jax.ShapeDtypeStruct((slots * CONTEXT // PAGE, PAGE, 4, 256), BF16)
    table = jax.ShapeDtypeStruct((slots, CONTEXT // PAGE), INT32)
    start = jax.ShapeDtypeStruct((slots,), INT32)
    gate = jax.ShapeDtypeStruct((slots, ROWS, 24, 512), BF16)
    return Program(
        op="paged_block_attention",
        label=f"{slots * ROWS} rows",
        function=functools.partial(_gated, implementation="mosaic_gpu"),
        shapes=(q, pages, pages, table, start, gate),
        bytes_moved=_bytes(q, pages, pages, table, start, q, q),
    )


def _ring(slots: int) -> Program:
    """A sliding layer of the drafter: 32 query heads over 8 of 128."""
    q = jax.ShapeDtypeStruct((slots, ROWS, 32, 128), BF16)
    ring = jax.ShapeDtypeStruct((slots, WINDOW + ROWS, 8, 128), BF16)
    block = jax.ShapeDtypeStruct((slots, ROWS, 8, 128), BF16)
    length = jax.ShapeDtypeStruct((slots,), INT32)
    return Program(
        op="ring_block_attention",
        label=f"{slots * ROWS} rows",
        function=functools.partial(ring_block_attention, window=WINDOW, causal=True, implementation="mosaic_gpu"),
        shapes=(q, ring, ring, block, block, length),
        bytes_moved=_bytes(q, ring, ring, block, block, length, q),
    )


PROGRAMS = tuple(program(slots) for program in (_paged, _ring) for slots in BATCHES)
