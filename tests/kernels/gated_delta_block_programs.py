"""A block of the 27B target's gated delta layers, from its projections on: 1 and 8 slots of 16 rows."""

import functools

import jax
import jax.numpy as jnp

from pallas_kernels.gated_delta import gated_delta_block
from tests.kernels import gated_delta_replay_programs as replay
from tests.kernels.machine_code import Program

WIDTH = 4
CHANNELS = (2 * replay.KEY_HEADS + replay.VALUE_HEADS) * replay.DIM


def block(caches, mixed, a, b, taps, a_log, dt_bias, accepted, length, **options):
    """The operation with what it changes in place as its first argument and second result."""
    rows = mixed, a, b, taps, a_log, dt_bias
    state, records, conv = caches
    counts = accepted, length
    o, *caches = gated_delta_block(*rows, state, records, conv, *counts, key_heads=replay.KEY_HEADS, **options)
    return o, tuple(caches)


def program(slots: int) -> Program:
    """One layer, its caches donated."""

    def bf16(*shape):
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16)

    def float32(*shape):
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    state, records, counts = replay.shapes(slots)[:3]
    gates, rows = bf16(slots, replay.ROWS, replay.VALUE_HEADS), replay.ROWS + WIDTH - 1
    shapes = (
        (state, records, bf16(slots, rows, CHANNELS)),
        bf16(slots, replay.ROWS, CHANNELS),
        gates,
        gates,
        bf16(CHANNELS, WIDTH),
        float32(replay.VALUE_HEADS),
        float32(replay.VALUE_HEADS),
        counts,
        counts,
    )
    # State and records read and written, outputs; projections, taps, the window and what replaces it.
    floats = (
        2 * sum(leaf.size for leaf in jax.tree.leaves((state, records)))
        + slots * replay.ROWS * replay.VALUE_HEADS * 128
    )
    halves = slots * CHANNELS * (replay.ROWS + WIDTH - 1 + rows) + 2 * gates.size + CHANNELS * WIDTH
    return Program(
        op="gated_delta_block",
        label=f"{slots * replay.ROWS} rows",
        function=functools.partial(block, implementation="mosaic_gpu"),
        shapes=shapes,
        donate=(0,),
        bytes_moved=4 * floats + 2 * halves,
    )


# What lies between is the same kernel over more or fewer slots, and the replay alone is compiled for all.
PROGRAMS = tuple(program(slots) for slots in (1, 8))
