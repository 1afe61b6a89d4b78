"""First prefill kernel: the matrices of every chunk that do not need the state, all chunks at once.

A block takes one chunk of one key head: it splits k and q into bfloat16 parts, which the second kernel reads again, and
each of its warpgroups makes the mixers of some of the value heads that share them. The mixer's columns come from
eliminating on [I | 0]: step j adds column j, final by then, times coefficient row j to the columns right of it. That is
forward substitution for all right-hand sides together, as accurate as float32 substitution is.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float

from pallas_kernels.bf16_parts import PARTS
from pallas_kernels.gated_delta.mosaic_parts import ROWS, matrix, product, stacked, transposed, write_parts
from pallas_kernels.gated_delta.mosaic_prefill_operands import (
    CHUNK,
    COEFFICIENT,
    GATES,
    HIGH,
    LOW,
    ROW_BETA,
    ROW_HIGH,
    ROW_LOW,
    WEIGHT,
    ChunkOperands,
)
from pallas_kernels.matrix_unit import matrix_unit
from pallas_kernels.shared_memory import tiled

TILE = plgpu.Layout.WGMMA
ROW_VECTOR = TILE.reduce(1)  # one value per row
COLUMN_VECTOR = TILE.reduce(0)  # one value per column
BOTH = 2 * CHUNK
# A difference of log decays that exp takes to zero.
NEVER = -1e30


def shared_memory_bytes(key_dim: int, warpgroups: int) -> int:
    """Of one block."""
    rows = BOTH * key_dim * (4 + 2 * PARTS)
    return rows + warpgroups * (BOTH * BOTH * (4 + 2 * PARTS) + GATES * BOTH * 4) + 1024


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Shared:
    """Shared memory of a block; from `gates` to `mixer` one per warpgroup."""

    rows: Any  # k, then q
    parts: Any
    gates: Any
    coefficients: Any
    mixer: Any
    rows_loaded: Any
    parts_ready: Any
    gates_loaded: Any


def prepare(
    q: Float[Array, "B padded Nk K"],
    k: Float[Array, "B padded Nk K"],
    gates: Float[Array, "B Nv chunks GATES 2C"],
    warpgroups: int,
) -> ChunkOperands:
    """The operands of the second kernel. `warpgroups` divides the number of value heads per key head."""
    batch, rows, key_heads, key_dim = k.shape
    value_heads = gates.shape[1]
    chunks, repeat = rows // CHUNK, value_heads // key_heads
    turns = repeat // warpgroups
    unit = matrix_unit()

    def gated_delta_prefill_prepare(q, k, gates, keys_queries, mixers, shared: _Shared):
        slot, key_head, chunk = (lax.axis_index(name) for name in ("slot", "key_head", "chunk"))
        warpgroup = lax.axis_index("warpgroup")
        own_gates, own_loaded = shared.gates.at[warpgroup], shared.gates_loaded.at[warpgroup]

        @pl.when(warpgroup == 0)
        def _():
            for index, source in enumerate((k, q)):
                target = shared.rows.at[pl.ds(index * CHUNK, CHUNK)]
                chunk_rows = source.at[slot, pl.ds(chunk * CHUNK, CHUNK), key_head]
                plgpu.copy_gmem_to_smem(chunk_rows, target, shared.rows_loaded)
            plgpu.barrier_wait(shared.rows_loaded)
            # One warpgroup splits for all, and the second kernel reads the same parts.
            write_parts(plgpu.load(shared.rows, layout=TILE), stacked(shared.parts, BOTH))
            plgpu.copy_smem_to_gmem(shared.parts, keys_queries.at[slot, key_head, chunk])
            plgpu.barrier_arrive(shared.parts_ready)

        def one_head(turn, _):
            head = key_head * repeat + warpgroup * turns + turn
            # TMA may overwrite the last head's gates: `write_parts` has fenced the reads of them.
            plgpu.copy_gmem_to_smem(gates.at[slot, head, chunk], own_gates, own_loaded)
            plgpu.barrier_wait(own_loaded)
            mixer = _mixer(_gram(unit, shared.parts), own_gates, shared.coefficients.at[warpgroup])
            plgpu.wait_smem_to_gmem(0, wait_read_only=True)  # the last head's mixer has left
            write_parts(mixer, lambda part: shared.mixer.at[warpgroup, part])
            for part in range(PARTS):
                target = mixers.at[slot, head, chunk, pl.ds(part * CHUNK, CHUNK)]
                plgpu.copy_smem_to_gmem(shared.mixer.at[warpgroup, part, pl.ds(0, CHUNK)], target)

        plgpu.barrier_wait(shared.parts_ready)
        lax.fori_loop(0, turns, one_head, None)
        plgpu.wait_smem_to_gmem(0)

    keys_queries, mixers = plgpu.kernel(
        gated_delta_prefill_prepare,
        out_type=(
            jax.ShapeDtypeStruct((batch, key_heads, chunks, PARTS * BOTH, key_dim), jnp.bfloat16),
            jax.ShapeDtypeStruct((batch, value_heads, chunks, PARTS * CHUNK, BOTH), jnp.bfloat16),
        ),
        grid=(batch, chunks, key_heads),
        grid_names=("slot", "chunk", "key_head"),
        num_threads=warpgroups,
        thread_name="warpgroup",
        scratch_types=[
            _Shared(  # pyright: ignore[reportArgumentType]
                rows=tiled(jnp.float32, 128, BOTH, key_dim),
                parts=matrix(128, PARTS * BOTH, key_dim),
                gates=plgpu.SMEM((warpgroups, GATES, BOTH), jnp.float32),
                coefficients=plgpu.SMEM((warpgroups, ROWS, BOTH), jnp.float32),
                mixer=matrix(128, warpgroups, PARTS, ROWS, BOTH),
                rows_loaded=plgpu.Barrier(num_arrivals=2),
                parts_ready=plgpu.Barrier(),
                gates_loaded=plgpu.Barrier(num_barriers=warpgroups),
            )
        ],
    )(q, k, gates)
    return ChunkOperands(keys_queries, mixers)


def _gram(unit, parts):
    """Products of all keys (rows; those of queries are of no use) with all keys and queries (columns)."""
    return product(unit, stacked(parts, BOTH), transposed(stacked(parts, BOTH)))


def _mixer(gram, gates, coefficients):
    """Rows are residual rows (the lower half stays zero); columns are weighted deltas, then outputs."""
    row = plgpu.broadcasted_iota(jnp.int32, (ROWS, BOTH), 0, layout=TILE)
    column = plgpu.broadcasted_iota(jnp.int32, (ROWS, BOTH), 1, layout=TILE)

    def along_columns(ref):
        return lax.broadcast_in_dim(plgpu.load(ref, layout=COLUMN_VECTOR, optimized=False), (ROWS, BOTH), [1])

    def along_rows(ref):
        return lax.broadcast_in_dim(plgpu.load(ref, layout=ROW_VECTOR, optimized=False), (ROWS, BOTH), [0])

    # A key sees earlier keys only, a query also the key of its own row.
    sees = ((column < CHUNK) & (column > row)) | (column - CHUNK >= row)
    between = sum(
        along_columns(gates.at[end]) - along_rows(gates.at[start]) for end, start in ((HIGH, ROW_HIGH), (LOW, ROW_LOW))
    )
    decay = jnp.exp(jnp.where(sees, between, NEVER))  # masked first: elsewhere exp could overflow
    coefficients[...] = jnp.where(sees, gram * decay * along_columns(gates.at[COEFFICIENT]), 0.0)
    column_of_half = plgpu.broadcasted_iota(jnp.int32, (ROWS, CHUNK), 1, layout=TILE)

    def eliminate(j, x):
        final = jnp.sum(jnp.where(column_of_half == j, x[:, :CHUNK], 0.0), axis=1)
        return x + lax.broadcast_in_dim(final, (ROWS, BOTH), [0]) * along_columns(coefficients.at[j])

    unit = jnp.where((row == column) & (row < CHUNK), 1.0, 0.0)
    solved = lax.fori_loop(0, CHUNK, eliminate, unit)
    return solved * along_rows(gates.at[ROW_BETA]) * along_columns(gates.at[WEIGHT])
