"""Second prefill kernel: one block walks the whole span for 64 value channels of one head.

The state tile [64, K] lives in registers from the first chunk to the last: it is read once and written once. (In
pieces of 64 columns: its update then takes the registers of one piece, not of the whole.) Products are transposed
(value channels are the rows of every tile), so that the state has the shape of its own update:

    Y, Z = S [k; q]^T     r = v^T - exp(G) Y     W, O = r [mixer]     o^T = exp(G) Z + O     S = exp(G_last) S + W k

TMA fills the next stage of shared memory while a chunk is computed.
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
from pallas_kernels.gated_delta.mosaic_prefill_operands import CHUNK, RETAIN, ChunkOperands
from pallas_kernels.matrix_unit import MatrixUnit, matrix_unit
from pallas_kernels.shared_memory import tiled

TILE = plgpu.Layout.WGMMA
TRANSPOSED = plgpu.Layout.WGMMA_TRANSPOSED
BOTH = 2 * CHUNK
PIECE = 64
# Deltas and residuals are CHUNK wide, and both factors of a product have one swizzle.
SWIZZLE = 2 * CHUNK


def shared_memory_bytes(key_dim: int, stages: int) -> int:
    """Of one block."""
    stage = 2 * PARTS * (BOTH * key_dim + CHUNK * BOTH) + 4 * (BOTH + CHUNK * ROWS)
    return stages * stage + 2 * PARTS * ROWS * (key_dim + CHUNK) + 4 * CHUNK * ROWS + 1024


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Shared:
    """Shared memory of a block; the first four and the barrier once per stage."""

    keys_queries: Any
    mixer: Any
    retain: Any  # exp(G)
    v: Any
    state_parts: Any
    row_parts: Any  # of the residuals, then of the weighted deltas
    o: Any
    loaded: Any


def walk(
    operands: ChunkOperands,
    gates: Float[Array, "B Nv chunks GATES 2C"],
    v: Float[Array, "B padded Nv V"],
    state: Float[Array, "B Nv V K"],
    stages: int,
) -> tuple[Float[Array, "B padded Nv V"], Float[Array, "B Nv V K"]]:
    """Outputs of all rows and the state after them."""
    batch, value_heads, value_dim, key_dim = state.shape
    chunks = gates.shape[2]
    unit = matrix_unit()
    repeat = value_heads // operands.keys_queries.shape[1]

    def gated_delta_prefill_walk(operands: Any, gates, v, state_in, o, state_out, shared: _Shared):
        slot, head, tile = (lax.axis_index(name) for name in ("slot", "head", "tile"))
        channels = pl.ds(tile * ROWS, ROWS)

        def of_chunk(rows, chunk):
            return rows.at[slot, pl.ds(chunk * CHUNK, CHUNK), head, channels]

        def load(chunk):
            stage = lax.rem(chunk, stages)
            for source, target in (
                (operands.keys_queries.at[slot, head // repeat, chunk], shared.keys_queries),
                (operands.mixers.at[slot, head, chunk], shared.mixer),
                (gates.at[slot, head, chunk, RETAIN], shared.retain),
                (of_chunk(v, chunk), shared.v),
            ):
                plgpu.copy_gmem_to_smem(source, target.at[stage], shared.loaded.at[stage])

        def step(chunk, state):
            stage = lax.rem(chunk, stages)
            plgpu.barrier_wait(shared.loaded.at[stage])
            deltas, output = _read(unit, shared, stage, state)
            plgpu.wait_smem_to_gmem(0, wait_read_only=True)  # the last outputs have left
            shared.o.T[...] = plgpu.layout_cast(output, TRANSPOSED)
            state = _update(unit, shared, stage, state, deltas)
            # `_update` has made all writes to shared memory visible to TMA, and all reads of this stage are over.
            plgpu.copy_smem_to_gmem(shared.o, of_chunk(o, chunk))

            @pl.when(chunk + stages < chunks)
            def _():
                load(chunk + stages)

            return state

        for chunk in range(min(stages, chunks)):
            load(jnp.int32(chunk))
        pieces = [pl.ds(column, PIECE) for column in range(0, key_dim, PIECE)]
        first = tuple(
            plgpu.load(state_in.at[slot, head, channels, piece], layout=TILE, optimized=False) for piece in pieces
        )
        for piece, last in zip(pieces, lax.fori_loop(0, chunks, step, first), strict=True):
            state_out[slot, head, channels, piece] = last
        plgpu.wait_smem_to_gmem(0)

    return plgpu.kernel(
        gated_delta_prefill_walk,
        out_type=(jax.ShapeDtypeStruct(v.shape, jnp.float32), jax.ShapeDtypeStruct(state.shape, jnp.float32)),
        grid=(batch, value_heads, value_dim // ROWS),
        grid_names=("slot", "head", "tile"),
        scratch_types=[
            _Shared(  # pyright: ignore[reportArgumentType]
                keys_queries=matrix(SWIZZLE, stages, PARTS * BOTH, key_dim),
                mixer=matrix(SWIZZLE, stages, PARTS * CHUNK, BOTH),
                retain=plgpu.SMEM((stages, BOTH), jnp.float32),
                v=tiled(jnp.float32, 128, stages, CHUNK, ROWS),
                state_parts=matrix(SWIZZLE, PARTS, ROWS, key_dim),
                row_parts=matrix(SWIZZLE, PARTS, ROWS, CHUNK),
                o=tiled(jnp.float32, 128, CHUNK, ROWS),
                loaded=plgpu.Barrier(num_arrivals=4, num_barriers=stages),
            )
        ],
    )(operands, gates, v, state)


def _read(unit: MatrixUnit, shared: _Shared, stage, state):
    """Weighted deltas and outputs [64, C] of a chunk, from the pieces of the state before it."""
    for index, piece in enumerate(state):
        columns = pl.ds(index * PIECE, PIECE)
        write_parts(piece, lambda part, columns=columns: shared.state_parts.at[part, :, columns])
    pairs = product(
        unit, lambda part: shared.state_parts.at[part], transposed(stacked(shared.keys_queries.at[stage], BOTH))
    )
    retain = plgpu.load(shared.retain.at[stage, pl.ds(0, CHUNK)], layout=TILE.reduce(0), optimized=False)
    retain = lax.broadcast_in_dim(retain, (ROWS, CHUNK), [1])
    v = plgpu.layout_cast(plgpu.load(shared.v.at[stage].T, layout=TRANSPOSED), TILE)
    # The sign goes to the decay: that of an accumulator is moved above the wait for it, which serialises every wgmma.
    write_parts(v + (-retain) * pairs[:, :CHUNK], lambda part: shared.row_parts.at[part])
    mixed = product(unit, lambda part: shared.row_parts.at[part], stacked(shared.mixer.at[stage], CHUNK))
    return mixed[:, :CHUNK], retain * pairs[:, CHUNK:] + mixed[:, CHUNK:]


def _update(unit: MatrixUnit, shared: _Shared, stage, state, deltas):
    """The pieces of the state after a chunk."""
    retained = shared.retain[stage, CHUNK - 1]
    write_parts(deltas, lambda part: shared.row_parts.at[part])
    keys = [shared.keys_queries.at[stage, :, pl.ds(index * PIECE, PIECE)] for index in range(len(state))]
    return tuple(
        retained * piece + product(unit, lambda part: shared.row_parts.at[part], stacked(k, BOTH, CHUNK))
        for piece, k in zip(state, keys, strict=True)
    )
