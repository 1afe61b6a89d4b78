"""The replay of the 27B target's gated delta layers: 1 to 8 slots of 16 rows."""

import functools

import jax
import jax.numpy as jnp

from pallas_kernels.gated_delta import Records, gated_delta_replay
from tests.kernels.machine_code import Program

KEY_HEADS, VALUE_HEADS, DIM, ROWS = 16, 48, 128, 16


def shapes(slots: int) -> tuple:
    """The arguments of `gated_delta_replay`."""

    def float32(*shape):
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    pairs = float32(slots, ROWS, KEY_HEADS, DIM)
    gates = float32(slots, ROWS, VALUE_HEADS)
    records = jax.eval_shape(Records, pairs, float32(slots, VALUE_HEADS, DIM, ROWS), gates)
    state = float32(slots, VALUE_HEADS, DIM, DIM)
    accepted = jax.ShapeDtypeStruct((slots,), jnp.int32)
    return state, records, accepted, pairs, pairs, float32(slots, ROWS, VALUE_HEADS, DIM), gates, gates


def bytes_moved(slots: int) -> int:
    """State read and written; deltas and keys read and written; queries, values and outputs; gates."""
    state = VALUE_HEADS * DIM * DIM
    by_value_head = ROWS * VALUE_HEADS * DIM
    by_key_head = ROWS * KEY_HEADS * DIM
    return 4 * slots * (2 * state + 4 * by_value_head + 4 * by_key_head + 4 * ROWS * VALUE_HEADS)


def program(slots: int) -> Program:
    """One layer, its state donated."""
    return Program(
        op="gated_delta_replay",
        label=f"{slots * ROWS} rows",
        function=functools.partial(gated_delta_replay, implementation="mosaic_gpu"),
        shapes=shapes(slots),
        donate=(0,),
        bytes_moved=bytes_moved(slots),
    )


PROGRAMS = tuple(program(slots) for slots in (1, 2, 4, 8))
