"""What the attention layers of the 27B pair do before they attend, 1 to 8 slots of 16 rows."""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.attention_inputs import Heads, rotate_and_store, rotate_heads
from pallas_kernels.rope import Rope
from pallas_kernels.row_norm import RowNorm
from tests.kernels.machine_code import Program

ROWS = 16
SLOTS = (1, 2, 4, 8)
POSITIONS = 32768  # of a slot, in the target's pages
RING = 8208  # rows of a drafter layer's ring
TARGET, DRAFTER = Rope(64, 1e7), Rope(128, 1e7)


def target_layer(caches, q, k, v, q_weight, k_weight, at, positions, **options):
    """Queries with their gates, 24 heads of 256, and 4 of keys and values; the caches first and second."""
    q = Heads(q, RowNorm(q_weight, 1e-6, "one_plus"), 24, 256)
    k = Heads(k, RowNorm(k_weight, 1e-6, "one_plus"), 4, 256)
    k_cache, v_cache = caches
    heads, *stored = rotate_and_store([q], k, v, k_cache, v_cache, at, positions, TARGET, **options)
    return heads, tuple(stored)


def drafter_block(q, k, q_weight, k_weight, positions, **options):
    """32 heads of queries and 8 of keys, 128 long."""
    q, k = _drafter_heads(q, q_weight, 32), _drafter_heads(k, k_weight, 8)
    return rotate_heads([q, k], positions, DRAFTER, **options)


def drafter_context(caches, k, v, k_weight, at, positions, **options):
    """Keys and values of target features, into one layer's ring."""
    k_cache, v_cache = caches
    keys = _drafter_heads(k, k_weight, 8)
    heads, *stored = rotate_and_store([], keys, v, k_cache, v_cache, at, positions, DRAFTER, **options)
    return heads, tuple(stored)


def _drafter_heads(rows, weight, count):
    return Heads(rows, RowNorm(weight, 1e-6, "plain"), count, 128)


def _bf16(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


def _program(
    op: str,
    name: str,
    function: Callable,
    slots: int,
    widths: Sequence[int],
    norms: Sequence[Any],
    caches: Any = None,
    unread: int = 0,
) -> Program:
    """`widths` of the projections, of which `unread` columns are gates; `norms` are the weights' shapes."""
    rows = [_bf16(slots, ROWS, width) for width in widths]
    numbers = jax.ShapeDtypeStruct((slots, ROWS), jnp.int32)
    counts = [numbers] if caches is None else [numbers, numbers]  # positions, after places in the caches
    return Program(
        op=op,
        label=f"{name}, {slots * ROWS} rows",
        function=functools.partial(function, implementation="mosaic_gpu"),
        shapes=(*([] if caches is None else [(caches, caches)]), *rows, *norms, *counts),
        donate=() if caches is None else (0,),
        bytes_moved=2 * 2 * slots * ROWS * (sum(widths) - unread),
    )


def _programs(slots: int) -> Iterator[Program]:
    pages, ring = _bf16(slots * POSITIONS, 4, 256), _bf16(slots * RING, 8, 128)
    long, short = _bf16(256), _bf16(128)
    yield _program("rotate_and_store", "target", target_layer, slots, (12288, 1024, 1024), (long, long), pages, 6144)
    yield _program("rotate_heads", "drafter", drafter_block, slots, (4096, 1024), (short, short))
    yield _program("rotate_and_store", "context", drafter_context, slots, (1024, 1024), (short,), ring)


PROGRAMS = tuple(program for slots in SLOTS for program in _programs(slots))
