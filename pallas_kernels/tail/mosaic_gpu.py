"""Two Mosaic GPU kernels at float32 accuracy, and one XLA fusion or two that add what their blocks return.

    messages  r m(u) of a few units per block, as three bfloat16 parts
    scores    y(u) = x + W (r m(u)) of a slice of the residual, and its shares of |y|^2 and of (g * y) . head[v]

The weights, codebook and head are bfloat16, so a float32 factor in three bfloat16 parts makes products that are exact
to 2^-24. A block has 64 rows: four positions of sixteen predecessors, each one warp's rows of an accumulator.
"""

import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, BFloat16, Float

from pallas_kernels.bf16_parts import split
from pallas_kernels.bridge.gates import BridgeGates
from pallas_kernels.matrix_unit import matrix_unit
from pallas_kernels.skinny_matmul import BLOCK, operand, stream
from pallas_kernels.tail.tiles import CHOICES, PARTS, POSITIONS, Tiles

COLUMNS = plgpu.Layout.WGMMA.reduce(0)  # a vector over the columns of an accumulator
REPEATS = 8  # the narrowest array in an accumulator's layout


def tail_mosaic_gpu(
    x: Float[Array, "B P H"],
    magnitude: Float[Array, "B P 1"],
    code: Float[Array, "B P C"],
    predecessor: Float[Array, "B P 16 C"],
    head: Float[Array, "B P 16 H"],
    write: Float[Array, "H M"],
    norm: Float[Array, " H"],
    gates: BridgeGates,
    *,
    eps: float,
    tiles: Tiles,
) -> Float[Array, "B P 16 16"]:
    """s as of `tail_scores`; x, the candidates' rows and the weights are bfloat16."""
    slots, positions, hidden = x.shape
    m = messages(
        magnitude.reshape(-1),
        receiver_parts(code.reshape(slots * positions, -1)),
        predecessor.reshape(slots * positions * CHOICES, -1),
        gates,
        tiles,
    )
    shares = score_shares(x.reshape(-1, hidden), m, head.reshape(-1, hidden), write, norm, tiles)
    sums = jnp.sum(shares, axis=0)[: slots * positions * CHOICES]
    rho = jnp.sqrt(sums[:, CHOICES:] / hidden + eps)
    return (sums[:, :CHOICES] / rho[:, :1]).reshape(slots, positions, CHOICES, CHOICES)


def receiver_parts(code: Float[Array, "P C"]) -> BFloat16[Array, "groups 16 C"]:
    """Each group's codes, largest parts first: row 4 i + j is part i of position j, the last four rows are zero."""
    groups = pl.cdiv(len(code), POSITIONS)
    padded = jnp.pad(code, ((0, groups * POSITIONS - len(code)), (0, 0))).reshape(groups, POSITIONS, -1)
    return jnp.concatenate([*split(padded), jnp.zeros(padded.shape, jnp.bfloat16)], axis=1)


def messages(
    magnitude: Float[Array, " P"],
    receiver: BFloat16[Array, "groups 16 C"],
    predecessor: BFloat16[Array, "U C"],
    gates: BridgeGates,
    tiles: Tiles,
) -> BFloat16[Array, "3 rows M"]:
    """The parts of r m(u); rows are filled up to whole groups."""
    groups, _, width = receiver.shape
    units, columns, step = len(gates.gate_bias), tiles.message_columns, tiles.message_step
    steps = width // step
    stages = min(tiles.message_stages, steps)
    scale = math.sqrt(width)
    unit = matrix_unit()
    last = len(magnitude) - 1

    def kernel(
        magnitude_g, receiver_g, predecessor_g, gate_g, predecessor_gate_g, message_g, bias_g, m_g,
        codes_s, weights_s, gate_s, out_s, full,
    ):  # fmt: skip
        tile, group = lax.axis_index("tile"), lax.axis_index("group")
        units_here = pl.ds(tile * columns, columns)

        def load(index, slot, barrier):
            along = pl.ds(index * step, step)
            for i, weight_g in enumerate((gate_g, predecessor_gate_g, message_g)):
                plgpu.copy_gmem_to_smem(weight_g.at[units_here, along], weights_s.at[slot, i], barrier)
            rows = predecessor_g.at[pl.ds(group * BLOCK, BLOCK), along]  # rows behind the last one arrive as zeros
            plgpu.copy_gmem_to_smem(rows, codes_s.at[slot, pl.ds(0, BLOCK)], barrier)
            plgpu.copy_gmem_to_smem(receiver_g.at[group, :, along], codes_s.at[slot, pl.ds(BLOCK, CHOICES)], barrier)

        def operands(slot):
            heard = codes_s.at[slot, pl.ds(0, BLOCK)]
            # The receivers' sixteen rows are the last of an operand whose other rows nobody reads.
            own = codes_s.at[slot, pl.ds(CHOICES, BLOCK)]
            return [[(rows, weights_s.at[slot, i].T)] for i, rows in enumerate((own, heard, heard))]

        own, gate, message = stream(unit, load, operands, full, shapes=[columns] * 3, steps=steps, stages=stages)
        gate_s[...] = own

        def receiver_gate(position):
            rows = [BLOCK - CHOICES + part * POSITIONS + position for part in range(PARTS)]
            return sum(plgpu.load(gate_s.at[row], layout=COLUMNS, optimized=False) for row in reversed(rows))

        def magnitude_of(position):
            # A position behind the last one repeats it: its rows are dropped.
            return magnitude_g[jnp.minimum(group * POSITIONS + position, last)]

        bias = plgpu.load(bias_g.at[units_here], layout=COLUMNS, optimized=False).astype(jnp.float32)
        gate = scale * gate + _by_position([receiver_gate(i) + bias for i in range(POSITIONS)])
        message = message * (scale * _by_position([_full(magnitude_of(i), columns) for i in range(POSITIONS)]))
        for i, part in enumerate(split(message / (1.0 + jnp.exp(-gate)))):
            out_s[i] = part
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(out_s, m_g.at[:, pl.ds(group * BLOCK, BLOCK), units_here])
        plgpu.wait_smem_to_gmem(0)

    return plgpu.kernel(
        kernel,
        kernel_name="tail_messages",
        out_type=jax.ShapeDtypeStruct((PARTS, groups * BLOCK, units), jnp.bfloat16),
        grid=(units // columns, groups),
        grid_names=("tile", "group"),
        scratch_types={
            "codes_s": operand(stages, BLOCK + CHOICES, step),
            "weights_s": operand(stages, 3, columns, step),
            "gate_s": plgpu.SMEM((BLOCK, columns), jnp.float32),
            "out_s": operand(PARTS, BLOCK, columns),
            "full": plgpu.Barrier(num_arrivals=5, num_barriers=stages),
        },
    )(
        magnitude, receiver, predecessor, gates.receiver_gate, gates.predecessor_gate, gates.message, gates.gate_bias
    )  # fmt: skip


def score_shares(
    x: BFloat16[Array, "P H"],
    m: BFloat16[Array, "3 rows M"],
    head: BFloat16[Array, "k H"],
    write: BFloat16[Array, "H M"],
    norm: Float[Array, " H"],
    tiles: Tiles,
) -> Float[Array, "slices rows 16+8"]:
    """Per slice of the residual (g * y(u)) . head[v], and behind them |y(u)|^2 eight times: one array, one sum."""
    (_, rows, units), hidden = m.shape, len(write)
    columns, step = tiles.score_columns, tiles.score_step
    steps = units // step
    stages = min(tiles.score_stages, steps)
    unit = matrix_unit()

    def kernel(
        x_g, m_g, head_g, write_g, norm_g, shares_g,
        m_s, write_s, x_s, head_s, y_s, shares_s, full, arrived,
    ):  # fmt: skip
        tile, group = lax.axis_index("tile"), lax.axis_index("group")
        here, slice_here = pl.ds(group * BLOCK, BLOCK), pl.ds(tile * columns, columns)

        def load(index, slot, barrier):
            along = pl.ds(index * step, step)
            plgpu.copy_gmem_to_smem(write_g.at[slice_here, along], write_s.at[slot], barrier)
            plgpu.copy_gmem_to_smem(m_g.at[:, here, along], m_s.at[slot], barrier)

        def operands(slot):
            # The smallest parts first: they must not be lost beside a large sum.
            return [[(m_s.at[slot, part], write_s.at[slot].T) for part in reversed(range(PARTS))]]

        # Positions behind the last one arrive as zeros.
        plgpu.copy_gmem_to_smem(x_g.at[pl.ds(group * POSITIONS, POSITIONS), slice_here], x_s, arrived)
        plgpu.copy_gmem_to_smem(head_g.at[here, slice_here], head_s, arrived)
        (update,) = stream(unit, load, operands, full, shapes=[columns], steps=steps, stages=stages, in_flight=1)
        plgpu.barrier_wait(arrived)
        residual = [
            plgpu.load(x_s.at[i], layout=COLUMNS, optimized=False).astype(jnp.float32) for i in range(POSITIONS)
        ]
        y = update + _by_position(residual)
        squares = jnp.sum(jnp.square(y), axis=1)
        shares_s[:, pl.ds(CHOICES, REPEATS)] = lax.broadcast_in_dim(squares, (BLOCK, REPEATS), [0])
        weight = plgpu.load(norm_g.at[slice_here], layout=COLUMNS, optimized=False).astype(jnp.float32)
        parts = split(y * lax.broadcast_in_dim(weight, y.shape, [1]))

        # Every row of the block meets the candidates of all four positions; its own are kept.
        scores = jnp.float32(0.0)
        for part in reversed(parts):
            y_s[...] = part
            plgpu.commit_smem()
            scores += unit.multiply((y_s, head_s.T))
        shares_s[:, pl.ds(0, CHOICES)] = _by_position(
            [scores[:, i * CHOICES : (i + 1) * CHOICES] for i in range(POSITIONS)]
        )
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(shares_s, shares_g.at[tile, here])
        plgpu.wait_smem_to_gmem(0)

    slices = hidden // columns
    return plgpu.kernel(
        kernel,
        kernel_name="tail_scores",
        out_type=jax.ShapeDtypeStruct((slices, rows, CHOICES + REPEATS), jnp.float32),
        grid=(slices, rows // BLOCK),
        grid_names=("tile", "group"),
        scratch_types={
            "m_s": operand(stages, PARTS, BLOCK, step),
            "write_s": operand(stages, columns, step),
            "x_s": plgpu.SMEM((POSITIONS, columns), jnp.bfloat16),
            "head_s": operand(BLOCK, columns),
            "y_s": operand(BLOCK, columns),
            "shares_s": plgpu.SMEM((BLOCK, CHOICES + REPEATS), jnp.float32),
            "full": plgpu.Barrier(num_arrivals=2, num_barriers=stages),
            "arrived": plgpu.Barrier(num_arrivals=2),
        },
    )(x, m, head, write, norm)


def _by_position(values):
    """A [64, columns] array that takes each position's sixteen rows from its own value."""
    columns = values[0].shape[-1]
    values = [v if v.ndim == 2 else lax.broadcast_in_dim(v, (BLOCK, columns), [1]) for v in values]
    row = plgpu.broadcasted_iota(jnp.int32, (BLOCK, columns), 0, layout=plgpu.Layout.WGMMA)
    taken = values[0]
    for position, value in enumerate(values[1:], start=1):
        taken = jnp.where(row >= position * CHOICES, value, taken)
    return taken


def _full(scalar, columns):
    return plgpu.layout_cast(jnp.full((BLOCK, columns), scalar), plgpu.Layout.WGMMA)
