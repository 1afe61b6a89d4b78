"""The prefill of the 27B target's gated delta layers: spans of 512 to 2048 rows of one slot, and of eight slots."""

import functools

import jax
import jax.numpy as jnp

from pallas_kernels.gated_delta import gated_delta_prefill
from tests.kernels.machine_code import Program

KEY_HEADS, VALUE_HEADS, DIM = 16, 48, 128


def shapes(slots: int, rows: int) -> tuple:
    """The arguments of `gated_delta_prefill`."""

    def float32(*shape):
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    pairs = float32(slots, rows, KEY_HEADS, DIM)
    values = float32(slots, rows, VALUE_HEADS, DIM)
    gates = float32(slots, rows, VALUE_HEADS)
    return pairs, pairs, values, gates, gates, float32(slots, VALUE_HEADS, DIM, DIM)


def bytes_moved(slots: int, rows: int) -> int:
    """Queries, keys, values, gates and outputs once, the state read and written."""
    row = 2 * KEY_HEADS * DIM + 2 * VALUE_HEADS * DIM + 2 * VALUE_HEADS
    return 4 * slots * (rows * row + 2 * VALUE_HEADS * DIM * DIM)


PROGRAMS = tuple(
    Program(
        op="gated_delta_prefill",
        label=f"{slots} x {rows} rows",
        function=functools.partial(gated_delta_prefill, implementation="mosaic_gpu"),
        shapes=shapes(slots, rows),
        bytes_moved=bytes_moved(slots, rows),
    )
    for slots, rows in ((1, 512), (1, 1024), (1, 2048), (8, 512))
)
