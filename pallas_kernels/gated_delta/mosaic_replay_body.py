"""What one thread block of the replay kernel does: one warpgroup, one slot and key head, some tiles of the state.

Rows i of the new block and earlier or recorded rows j; v is a row of a state tile. A tile lies [v, K] in registers, so
its products with keys and queries have v as rows and i as columns, and so have the deltas and the outputs.
"""

import math
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.bf16_parts import PARTS, split
from pallas_kernels.gated_delta.mosaic_parts import (
    ROWS,
    left_factor,
    matrix,
    product,
    stacked,
    transposed,
    write_parts,
)
from pallas_kernels.gated_delta.mosaic_replay_operands import BLOCK, DECAY, FACTOR, GATES, HIGH, LOW
from pallas_kernels.matrix_unit import MatrixUnit
from pallas_kernels.shared_memory import tiled
from pallas_kernels.warp_rows import BY_ROW, COLUMNS

TILE_V = ROWS  # of one product
KEY_DIM = 128
PAIRS = 2 * BLOCK  # a block's keys, then its queries

_TILE = plgpu.Layout.WGMMA
_PER_COLUMN = _TILE.reduce(0)  # one value per column of a tile
_FEW_ROWS = plgpu.Layout.MMA_ACC(jnp.bfloat16, m_warps=1)  # of [16, 32k], stored to tiled memory without conflicts
# Of K: what lies in registers at a time, of a tile beside its sum, and of a left factor.
_HALVES = tuple(pl.ds(start, KEY_DIM // 2) for start in (0, KEY_DIM // 2))
_PIECE = 32
_NEVER = -1e30  # its exponential is 0
# Rows of sums_s: cumulative log decays of the new block as a sum of two, and the weights of the fold.
_SUM_HIGH, _SUM_LOW, _FOLD = range(3)


def scratch_shapes(unit: MatrixUnit, group: int, stages: int) -> dict[str, Any]:
    """Shared memory for `group` value heads per key head and `stages` tiles of the state, and the barriers."""
    f32 = jnp.float32
    gram_rows = _gram_rows(unit)
    # Swizzles of the factors of products over K, and over the 16 rows of a block.
    deep, shallow = 2 * _PIECE if unit.left_in_registers else 128, 32
    left_factors = {
        "state_parts_s": matrix(deep, PARTS, TILE_V, KEY_DIM),
        "narrow_parts_s": matrix(shallow, PARTS, TILE_V, BLOCK),
    }
    return {
        "state_s": tiled(f32, 128, stages, TILE_V, KEY_DIM),
        "deltas_s": tiled(f32, 64, stages, TILE_V, BLOCK),
        "values_s": tiled(f32, 128, stages, BLOCK, TILE_V),
        # A product may read more rows of the last part than it has.
        "pairs_s": matrix(deep, (PARTS - 1) * PAIRS + max(PAIRS, gram_rows), KEY_DIM),
        "recorded_s": matrix(shallow, PARTS * BLOCK, KEY_DIM),
        "gates_s": plgpu.SMEM((group, GATES, PAIRS), f32),
        "sums_s": plgpu.SMEM((3, PAIRS), f32),
        "coefficients_s": plgpu.SMEM((BLOCK, PAIRS), f32),
        "gram_s": plgpu.SMEM((gram_rows, PAIRS), f32),
        "solve_s": matrix(shallow, PARTS, BLOCK, PAIRS),
        "new_deltas_s": tiled(f32, 64, TILE_V, BLOCK),
        "out_s": tiled(f32, 128, BLOCK, TILE_V),
        "head_loaded": plgpu.Barrier(num_arrivals=3),
        "tile_loaded": plgpu.Barrier(num_arrivals=3, num_barriers=stages),
    } | ({} if unit.left_in_registers else left_factors)


def _gram_rows(unit: MatrixUnit) -> int:
    """Rows of the product whose first 16 rows are wanted."""
    return unit.block_rows(BLOCK, (PAIRS,))


def shared_memory_bytes(unit: MatrixUnit, group: int, stages: int) -> int:
    """Of `scratch_shapes`, with room for the barriers and alignment."""
    shapes = [ref for ref in scratch_shapes(unit, group, stages).values() if not isinstance(ref, plgpu.Barrier)]
    return sum(math.prod(ref.shape) * jnp.dtype(ref.dtype).itemsize for ref in shapes) + 2048


def body(
    unit: MatrixUnit,
    group: int,
    per_block: int,  # tiles that the block walks over
    stages: int,
    state_g,  # [B, Nv, V, K], read and written
    accepted_g,  # [B]
    rows_g,  # [B, Nk, 144, K] bfloat16
    gates_g,  # [B, Nv, 4, 32]
    deltas_g,  # [B, Nv, V, 16], read and written
    values_g,  # [B, 16, Nv, V]
    out_g,  # [B, 16, Nv, V]
    **scratch,
):
    """The whole kernel; `scratch` as in `scratch_shapes`."""
    smem = SimpleNamespace(**scratch)
    slot, key_head = jax.lax.axis_index("slot"), jax.lax.axis_index("key_head")
    first = jax.lax.axis_index("part") * per_block
    tiles_per_head = state_g.shape[2] // TILE_V
    accepted = accepted_g[slot]

    def place(tile):
        """The tile's value head, counted within the group and in all, and its rows of V."""
        head = jax.lax.div(first + tile, tiles_per_head)
        rows = pl.ds(jax.lax.rem(first + tile, tiles_per_head) * TILE_V, TILE_V)
        return head, key_head * group + head, rows

    def load(tile):
        _, head, rows = place(tile)
        stage = jax.lax.rem(tile, stages)
        loaded = smem.tile_loaded.at[stage]
        plgpu.copy_gmem_to_smem(state_g.at[slot, head, rows], smem.state_s.at[stage], loaded)
        plgpu.copy_gmem_to_smem(deltas_g.at[slot, head, rows], smem.deltas_s.at[stage], loaded)
        plgpu.copy_gmem_to_smem(values_g.at[slot, :, head, rows], smem.values_s.at[stage], loaded)

    heads = pl.ds(key_head * group, group)
    pairs, recorded = pl.ds(0, PARTS * PAIRS), pl.ds(PARTS * PAIRS, PARTS * BLOCK)
    plgpu.copy_gmem_to_smem(rows_g.at[slot, key_head, pairs], smem.pairs_s.at[pairs], smem.head_loaded)
    plgpu.copy_gmem_to_smem(rows_g.at[slot, key_head, recorded], smem.recorded_s, smem.head_loaded)
    plgpu.copy_gmem_to_smem(gates_g.at[slot, heads], smem.gates_s, smem.head_loaded)
    for tile in range(min(stages, per_block)):
        load(jnp.int32(tile))
    plgpu.barrier_wait(smem.head_loaded)
    smem.gram_s[...] = _gram(unit, smem)

    @pl.loop(0, per_block)
    def _(tile):
        head, value_head, rows = place(tile)
        stage = jax.lax.rem(tile, stages)

        @pl.when((tile == 0) | (jax.lax.rem(first + tile, tiles_per_head) == 0))
        def _():
            _prepare_head(smem, smem.gates_s.at[head])

        plgpu.barrier_wait(smem.tile_loaded.at[stage])
        _fold(unit, smem, stage, accepted)
        # The last tile's results may still be on their way out of the buffers that are filled again.
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)

        # A slot that accepted nothing keeps its state bit for bit.
        @pl.when(accepted > 0)
        def _():
            plgpu.copy_smem_to_gmem(smem.state_s.at[stage], state_g.at[slot, value_head, rows])

        new_deltas, out = _read(unit, smem, stage, smem.gates_s.at[head])
        smem.new_deltas_s[...] = new_deltas
        smem.out_s.T[...] = plgpu.layout_cast(out, plgpu.Layout.WGMMA_TRANSPOSED)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(smem.new_deltas_s, deltas_g.at[slot, value_head, rows])
        plgpu.copy_smem_to_gmem(smem.out_s, out_g.at[slot, :, value_head, rows])

        @pl.when(tile + stages < per_block)
        def _():
            # All stores but the last two have to be through: the state has left the buffer that is loaded again.
            plgpu.wait_smem_to_gmem(2, wait_read_only=True)
            load(tile + stages)

    plgpu.wait_smem_to_gmem(0)


def _gram(unit: MatrixUnit, smem):
    """[16 or more, 32], of which rows j < 16 count: products of key j with every key and query i."""
    return product(unit, stacked(smem.pairs_s, PAIRS, _gram_rows(unit)), transposed(stacked(smem.pairs_s, PAIRS)))


def _prepare_head(smem, gates_s):
    """What the value head's tiles share: sums of decays in sums_s and, in solve_s, the solution of its system.

    With A and P as in xla.py, solve_s [j, i] holds (I + A)^-1 transposed beside (P (I + A)^-1) transposed.
    """
    shape = BLOCK, PAIRS
    row, column = (plgpu.broadcasted_iota(jnp.int32, shape, axis, layout=BY_ROW) for axis in (0, 1))

    def across_rows(ref):
        return plgpu.layout_cast(_across_rows(_load(ref, COLUMNS), shape), BY_ROW)

    def across_columns(ref):
        return _across_columns(_load(ref, BY_ROW.reduce(1)), shape)

    keys, queries = pl.ds(0, BLOCK), pl.ds(BLOCK, BLOCK)
    for target, source in ((_SUM_HIGH, HIGH), (_SUM_LOW, LOW)):
        total = jnp.sum(jnp.where(column <= row, across_rows(gates_s.at[source]), 0.0), axis=1)
        for half in (keys, queries):
            smem.sums_s[target, half] = total
    # From each recorded row to the last accepted one, then the sum of all.
    g = across_rows(gates_s.at[DECAY])
    smem.sums_s[_FOLD, keys] = jnp.exp(jnp.sum(jnp.where(column > row, g, 0.0), axis=1))
    smem.sums_s[_FOLD, queries] = jnp.exp(jnp.sum(g, axis=1))
    plgpu.commit_smem()

    later = jnp.where(column < BLOCK, column > row, column - BLOCK >= row)
    high, low = (
        across_rows(smem.sums_s.at[i]) - across_columns(smem.sums_s.at[i, keys]) for i in (_SUM_HIGH, _SUM_LOW)
    )
    decay = jnp.exp(jnp.where(later, high + low, _NEVER))
    gram = _load(smem.gram_s.at[keys], BY_ROW)
    smem.coefficients_s[...] = gram * decay * across_rows(gates_s.at[FACTOR])
    plgpu.commit_smem()

    def eliminate(j, solution):
        # Column j is final: no coefficient of a row leads back to it.
        final = jnp.sum(jnp.where(column == j, solution, 0.0), axis=1)
        return solution + _across_columns(final, shape) * across_rows(smem.coefficients_s.at[j])

    identity = jnp.where(row == column, 1.0, 0.0)
    solution = jax.lax.fori_loop(0, BLOCK, eliminate, identity)
    plgpu.commit_smem()
    # No warp needs the coefficients any more. In their place the solution gets a layout that products can be fed from.
    smem.coefficients_s[...] = solution
    plgpu.commit_smem()
    write_parts(_load(smem.coefficients_s, _FEW_ROWS), lambda part: smem.solve_s.at[part])


def _fold(unit: MatrixUnit, smem, stage, accepted):
    """Adds the accepted rows of the records to the state tile, where it lies and, for wgmma, in state_parts_s."""
    narrow = (TILE_V, BLOCK)
    weight = _across_rows(_load(smem.sums_s.at[_FOLD, pl.ds(0, BLOCK)], unit.left.reduce(0)), narrow)
    # Rejected rows may hold anything, so they are replaced and not multiplied by zero.
    kept = plgpu.broadcasted_iota(jnp.int32, narrow, 1, layout=unit.left) < accepted
    deltas = jnp.where(kept, _load(smem.deltas_s.at[stage], unit.left) * weight, 0.0)
    deltas = left_factor(unit, deltas, lambda part: smem.narrow_parts_s.at[part])
    retained = smem.sums_s[_FOLD, BLOCK]
    for columns in _HALVES:
        recorded = stacked(smem.recorded_s.at[:, columns], BLOCK)
        update = product(unit, deltas, recorded)
        state = plgpu.load(smem.state_s.at[stage, :, columns], layout=_TILE) * retained + update
        smem.state_s[stage, :, columns] = state
        if unit.left_in_registers:
            plgpu.commit_smem()
        else:
            write_parts(state, lambda part, columns=columns: smem.state_parts_s.at[part, :, columns])


def _read(unit: MatrixUnit, smem, stage, gates_s):
    """Deltas and outputs [64, 16] of the new block, from the folded state."""
    pairs = _read_pairs(unit, smem, stage)
    narrow = (TILE_V, BLOCK)
    high, low = (_load(smem.sums_s.at[i, pl.ds(0, BLOCK)], _PER_COLUMN) for i in (_SUM_HIGH, _SUM_LOW))
    into = _across_rows(jnp.exp(high + low), narrow)
    minus_beta = _across_rows(_load(gates_s.at[FACTOR, pl.ds(0, BLOCK)], _PER_COLUMN), narrow)
    values = plgpu.load(smem.values_s.at[stage].T, layout=plgpu.Layout.WGMMA_TRANSPOSED, optimized=False)
    values = plgpu.layout_cast(values, _TILE)
    # beta (v - into S k), written without a minus before a product: its sign flip would be moved above the wait for
    # the matrix unit, and the compiler would then wait after every single product.
    residual = (minus_beta * into) * pairs[:, :BLOCK] + (-minus_beta) * values
    if unit.left_in_registers:
        # A sum has another layout than a left factor.
        smem.new_deltas_s[...] = residual
        plgpu.commit_smem()
        residual = _load(smem.new_deltas_s, unit.left)
    residual = left_factor(unit, residual, lambda part: smem.narrow_parts_s.at[part])
    solved = product(unit, residual, lambda part: smem.solve_s.at[part])
    return solved[:, :BLOCK], into * pairs[:, BLOCK:] + solved[:, BLOCK:]


def _read_pairs(unit: MatrixUnit, smem, stage):
    """[64, 32]: products of the folded state with the block's keys and queries.

    Where the state comes from its tile, each piece of K is summed apart: the small partial products of a piece then
    meet no large sum.
    """
    pairs = transposed(stacked(smem.pairs_s, PAIRS))
    if not unit.left_in_registers:
        return product(unit, lambda part: smem.state_parts_s.at[part], pairs)

    def add(step, total):
        columns = pl.ds(step * _PIECE, _PIECE)
        state = split(_load(smem.state_s.at[stage, :, columns], unit.left))
        piece = transposed(stacked(smem.pairs_s.at[:, columns], PAIRS))
        return total + product(unit, lambda part: state[part], piece)

    none = plgpu.layout_cast(jnp.zeros((TILE_V, PAIRS), jnp.float32), _TILE)
    return jax.lax.fori_loop(0, KEY_DIM // _PIECE, add, none)


def _load(ref, layout):
    return plgpu.load(ref, layout=layout, optimized=False)


def _across_rows(x, shape):
    """One value per column, in every row."""
    return jax.lax.broadcast_in_dim(x, shape, [1])


def _across_columns(x, shape):
    """One value per row, in every column."""
    return jax.lax.broadcast_in_dim(x, shape, [0])
