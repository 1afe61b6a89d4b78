"""Four Mosaic GPU kernels: the weights stream once, and nothing between the products goes through XLA.

    readout   partial z = x R^T, one share of H per block          (the row's scale r commutes with the product)
    code      r and c of one row per block, from x and the shares
    message   m of a few units per block: G c, Gp c and A c side by side, the last two moved down by one row
    write     x' = x + r (m W^T) of a few columns of the residual per block

Rows are the M operand of every product, see skinny_matmul.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float

from pallas_kernels.bridge.gates import BridgeGates
from pallas_kernels.bridge.tiles import Tiles
from pallas_kernels.matrix_unit import matrix_unit
from pallas_kernels.skinny_matmul import BLOCK, operand, stream

ROWS = plgpu.Layout.WGMMA.reduce(1)  # a vector over the rows of an accumulator
COLUMNS = plgpu.Layout.WGMMA.reduce(0)  # a vector over its columns


# A function of its own for the compiler: the layers of a model trace and lower its kernels once.
@functools.partial(jax.jit, static_argnames=("eps", "tiles"))
def bridge_mosaic_gpu(
    x: Float[Array, "B T H"],
    anchor_code: Float[Array, "B C"],
    readout: Float[Array, "C H"],
    write: Float[Array, "H M"],
    gates: BridgeGates,
    *,
    eps: float,
    tiles: Tiles,
) -> tuple[Float[Array, "B T H"], Float[Array, "B T 1"], Float[Array, "B T C"]]:
    """x', r and c as of `bridge`; x and the weights are bfloat16."""
    slots, block_rows, hidden = x.shape
    rows = x.reshape(-1, hidden)
    parts = readout_parts(rows, readout, tiles)
    c, codes, r = row_codes(rows, parts, anchor_code.astype(jnp.float32), block_rows=block_rows, eps=eps)
    m = messages(codes, gates, block_rows=block_rows, tiles=tiles)
    written = write_rows(rows, r, m, write, tiles)
    return written.reshape(x.shape), r.reshape(slots, block_rows, 1), c.reshape(slots, block_rows, -1)


def readout_parts(x: Float[Array, "T H"], readout: Float[Array, "C H"], tiles: Tiles) -> Float[Array, "shares T C"]:
    """Partial sums of x R^T over equal shares of H."""
    (rows, hidden), codes = x.shape, len(readout)
    columns, shares, step = tiles.readout_columns, tiles.readout_splits, tiles.step
    steps = hidden // shares // step
    unit = matrix_unit()
    stages, blocks = min(tiles.readout_stages, steps), pl.cdiv(tiles.rows, BLOCK)

    def kernel(x_g, readout_g, parts_g, x_s, readout_s, out_s, full):
        group, tile, share = (lax.axis_index(name) for name in ("group", "tile", "share"))
        here, codes_here = pl.ds(group * tiles.rows, tiles.rows), pl.ds(tile * columns, columns)

        def load(index, slot, barrier):
            along = pl.ds((share * steps + index) * step, step)
            plgpu.copy_gmem_to_smem(readout_g.at[codes_here, along], readout_s.at[slot], barrier)
            plgpu.copy_gmem_to_smem(x_g.at[here, along], x_s.at[slot, pl.ds(0, tiles.rows)], barrier)

        def operands(slot):
            return [[(x_s.at[slot, pl.ds(i * BLOCK, BLOCK)], readout_s.at[slot].T)] for i in range(blocks)]

        sums = stream(unit, load, operands, full, shapes=[columns] * blocks, steps=steps, stages=stages)
        for block, value in enumerate(sums):
            out_s[pl.ds(block * BLOCK, BLOCK)] = value
        _send(out_s.at[pl.ds(0, tiles.rows)], parts_g.at[share, here, codes_here])

    return plgpu.kernel(
        kernel,
        kernel_name="bridge_readout",
        out_type=jax.ShapeDtypeStruct((shares, rows, codes), jnp.float32),
        grid=(rows // tiles.rows, codes // columns, shares),
        grid_names=("group", "tile", "share"),
        scratch_types={
            "x_s": operand(stages, blocks * BLOCK, step),
            "readout_s": operand(stages, columns, step),
            "out_s": operand(blocks * BLOCK, columns, dtype=jnp.float32),
            "full": plgpu.Barrier(num_arrivals=2, num_barriers=stages),
        },
    )(x, readout)


def row_codes(
    x: Float[Array, "T H"],
    parts: Float[Array, "shares T C"],
    anchor_code: Float[Array, "B C"],
    *,
    block_rows: int,
    eps: float,
) -> tuple[Float[Array, "T C"], Float[Array, "T C"], Float[Array, " T"]]:
    """c in float32 and in x's type, and r; row 0 of every draft block takes its anchor's code."""
    (rows, hidden), (shares, _, width) = x.shape, parts.shape

    def kernel(x_g, parts_g, anchor_g, c_g, codes_g, r_g):
        row = lax.axis_index("row")
        r = jnp.sqrt(jnp.sum(jnp.square(_load_row(x_g.at[row]).astype(jnp.float32))) / hidden)
        r_g[row] = r

        def store(code):
            c_g[row] = code
            codes_g[row] = code.astype(codes_g.dtype)

        is_anchor = lax.rem(row, block_rows) == 0

        @pl.when(is_anchor)
        def _():
            store(_load_row(anchor_g.at[lax.div(row, block_rows)]))

        @pl.when(~is_anchor)
        def _():
            z = sum(_load_row(parts_g.at[share, row]) for share in range(shares))
            z = z * (1.0 / (r + eps))
            norm = jnp.sqrt(jnp.sum(jnp.square(z)) + eps**2)
            store(z * (math.sqrt(width) / (norm + eps)))

    return plgpu.kernel(
        kernel,
        kernel_name="bridge_code",
        out_type=(
            jax.ShapeDtypeStruct((rows, width), jnp.float32),
            jax.ShapeDtypeStruct((rows, width), x.dtype),
            jax.ShapeDtypeStruct((rows,), jnp.float32),
        ),
        grid=(rows,),
        grid_names=("row",),
    )(x, parts, anchor_code)


def messages(codes: Float[Array, "T C"], gates: BridgeGates, *, block_rows: int, tiles: Tiles) -> Float[Array, "T M"]:
    """m of every row; zero for row 0 of every draft block."""
    (rows, width), units = codes.shape, len(gates.gate_bias)
    columns, step = tiles.message_columns, tiles.step
    steps = width // step
    unit = matrix_unit()
    stages, blocks = min(tiles.message_stages, steps), pl.cdiv(tiles.rows, BLOCK)

    def kernel(codes_g, receiver_g, predecessor_g, message_g, bias_g, m_g, codes_s, weights_s, moved_s, out_s, full):
        group, tile = lax.axis_index("group"), lax.axis_index("tile")
        here, units_here = pl.ds(group * tiles.rows, tiles.rows), pl.ds(tile * columns, columns)

        def load(index, slot, barrier):
            along = pl.ds(index * step, step)
            for i, weight_g in enumerate((receiver_g, predecessor_g, message_g)):
                plgpu.copy_gmem_to_smem(weight_g.at[units_here, along], weights_s.at[slot, i], barrier)
            plgpu.copy_gmem_to_smem(codes_g.at[here, along], codes_s.at[slot, pl.ds(0, tiles.rows)], barrier)

        def operands(slot):
            return [
                [(codes_s.at[slot, pl.ds(i * BLOCK, BLOCK)], weights_s.at[slot, weight].T)]
                for i in range(blocks)
                for weight in range(3)
            ]

        def next_row(value, i):
            # The product with the row before is this product one row up. A draft block never spans two operands, so
            # what falls off the edge belongs to an anchor's row, which hears nothing.
            moved_s[i, pl.ds(1, BLOCK)] = value
            return plgpu.load(moved_s.at[i, pl.ds(0, BLOCK)], layout=plgpu.Layout.WGMMA, optimized=False)

        bias = plgpu.load(bias_g.at[units_here], layout=COLUMNS, optimized=False).astype(jnp.float32)
        bias = lax.broadcast_in_dim(bias, (BLOCK, columns), [1])
        row = plgpu.broadcasted_iota(jnp.int32, (BLOCK, columns), 0, layout=plgpu.Layout.WGMMA)
        sums = stream(unit, load, operands, full, shapes=[columns] * (3 * blocks), steps=steps, stages=stages)
        for block in range(blocks):
            receiver, predecessor, message = sums[3 * block : 3 * block + 3]
            gate = receiver + next_row(predecessor, 0) + bias
            m = next_row(message, 1) / (1.0 + jnp.exp(-gate))
            m = jnp.where(lax.rem(row, block_rows) == 0, 0.0, m)
            out_s[pl.ds(block * BLOCK, BLOCK)] = m.astype(out_s.dtype)
        _send(out_s.at[pl.ds(0, tiles.rows)], m_g.at[here, units_here])

    return plgpu.kernel(
        kernel,
        kernel_name="bridge_message",
        out_type=jax.ShapeDtypeStruct((rows, units), codes.dtype),
        grid=(rows // tiles.rows, units // columns),
        grid_names=("group", "tile"),
        scratch_types={
            "codes_s": operand(stages, blocks * BLOCK, step),
            "weights_s": operand(stages, 3, columns, step),
            "moved_s": plgpu.SMEM((2, BLOCK + 1, columns), jnp.float32),
            "out_s": plgpu.SMEM((blocks * BLOCK, columns), codes.dtype),
            "full": plgpu.Barrier(num_arrivals=4, num_barriers=stages),
        },
    )(codes, gates.receiver_gate, gates.predecessor_gate, gates.message, gates.gate_bias)


def write_rows(
    x: Float[Array, "T H"], r: Float[Array, " T"], m: Float[Array, "T M"], write: Float[Array, "H M"], tiles: Tiles
) -> Float[Array, "T H"]:
    """x + r (m W^T)."""
    rows, (hidden, units) = len(x), write.shape
    columns, step = tiles.write_columns, tiles.step
    steps = units // step
    unit = matrix_unit()
    stages, blocks = min(tiles.write_stages, steps), pl.cdiv(tiles.rows, BLOCK)

    def kernel(x_g, r_g, m_g, write_g, out_g, x_s, r_s, m_s, write_s, full, arrived):
        group, tile = lax.axis_index("group"), lax.axis_index("tile")
        here, columns_here = pl.ds(group * tiles.rows, tiles.rows), pl.ds(tile * columns, columns)
        valid = pl.ds(0, tiles.rows)

        def load(index, slot, barrier):
            along = pl.ds(index * step, step)
            plgpu.copy_gmem_to_smem(write_g.at[columns_here, along], write_s.at[slot], barrier)
            plgpu.copy_gmem_to_smem(m_g.at[here, along], m_s.at[slot, valid], barrier)

        def operands(slot):
            return [[(m_s.at[slot, pl.ds(i * BLOCK, BLOCK)], write_s.at[slot].T)] for i in range(blocks)]

        plgpu.copy_gmem_to_smem(x_g.at[here, columns_here], x_s.at[valid], arrived)
        plgpu.copy_gmem_to_smem(r_g.at[here], r_s.at[valid], arrived)
        sums = stream(unit, load, operands, full, shapes=[columns] * blocks, steps=steps, stages=stages)
        plgpu.barrier_wait(arrived)
        for block, update in enumerate(sums):
            part = pl.ds(block * BLOCK, BLOCK)
            scale = lax.broadcast_in_dim(plgpu.load(r_s.at[part], layout=ROWS), (BLOCK, columns), [0])
            old = plgpu.load(x_s.at[part], layout=plgpu.Layout.WGMMA, optimized=False).astype(jnp.float32)
            x_s[part] = (old + scale * update).astype(x_s.dtype)
        _send(x_s.at[valid], out_g.at[here, columns_here])

    return plgpu.kernel(
        kernel,
        kernel_name="bridge_write",
        out_type=jax.ShapeDtypeStruct((rows, hidden), x.dtype),
        grid=(rows // tiles.rows, hidden // columns),
        grid_names=("group", "tile"),
        scratch_types={
            "x_s": plgpu.SMEM((blocks * BLOCK, columns), x.dtype),
            "r_s": plgpu.SMEM((blocks * BLOCK,), jnp.float32),
            "m_s": operand(stages, blocks * BLOCK, step),
            "write_s": operand(stages, columns, step),
            "full": plgpu.Barrier(num_arrivals=2, num_barriers=stages),
            "arrived": plgpu.Barrier(num_arrivals=2),
        },
    )(x, r, m, write)


def _send(source, target):
    plgpu.commit_smem()  # the stores must be visible to TMA
    plgpu.copy_smem_to_gmem(source, target)
    plgpu.wait_smem_to_gmem(0)


def _load_row(ref):
    # As many elements per thread and load as the width allows, 16 bytes at best.
    most = 16 // jnp.dtype(ref.dtype).itemsize
    size = math.gcd(ref.shape[0] // 128, most)
    return plgpu.load(ref, layout=plgpu.Layout.WG_STRIDED(ref.shape, vec_size=size), optimized=False)
