"""Norm, rotation and stores of all heads of a block in one Mosaic GPU kernel: a block of threads per 16 rows and head.

A head arrives in shared memory, is changed there, and leaves for its place: in an array of heads, or row by row for the
places in a cache, which is changed where it lies.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, BFloat16, Int

from pallas_kernels.attention_inputs.heads import Heads
from pallas_kernels.row_norm import RowNorm, scaled
from pallas_kernels.shared_memory import LINES
from pallas_kernels.warp_rows import BY_ROW, COLUMNS, NO_SCRATCH, ROWS, load_tile

Ref = Any  # of an array in global or shared memory


def attention_inputs(
    projections: Sequence[Heads],  # all heads of one length
    table: BFloat16[Array, "B T rope"],
    at: Int[Array, "B T"] | None = None,
    caches: Sequence[Any] = (),  # references [R, K, D] for the heads of the first projections, changed in place
) -> tuple[BFloat16[Array, "B T N D"], ...]:
    """The heads of the other projections. A row whose place `at` is R or more is not stored."""
    slots, length, rope = table.shape
    total, dim = slots * length, projections[0].dim
    rows = [_whole(one.rows) for one in projections]
    norms = [one.norm for one in projections]

    def attention_inputs(rows_g, norms_g, table_g, at_g, caches_g, *refs, head_s, table_s, loaded):
        group, block = lax.axis_index("group"), lax.axis_index("head")
        here = pl.ds(group * ROWS, ROWS)
        targets_g = (*caches_g, *refs)

        def store_row(t, target_g, head):
            row = group * ROWS + t
            place = at_g[jnp.minimum(row, total - 1)]

            @pl.when((row < total) & (place < target_g.shape[0]))
            def _():
                plgpu.copy_smem_to_gmem(head_s.at[pl.ds(t, 1)], target_g.at[pl.ds(place, 1), head])

        def serve(index, head):
            norm_g, target_g = norms_g[index], targets_g[index]
            columns = pl.ds(head * projections[index].place, dim)
            plgpu.copy_gmem_to_smem(rows_g[index].at[here, columns], head_s, loaded)
            plgpu.copy_gmem_to_smem(table_g.at[here], table_s, loaded)
            plgpu.barrier_wait(loaded)
            if norm_g is not None:
                _norm_and_rotate(head_s, table_s, norm_g)
            plgpu.commit_smem()
            if index < len(caches_g):
                lax.fori_loop(0, ROWS, lambda t, _: store_row(t, target_g, head), None)
            else:
                plgpu.copy_smem_to_gmem(head_s, target_g.at[here, head])
            plgpu.wait_smem_to_gmem(0)

        first = 0
        for index, one in enumerate(projections):
            pl.when((block >= first) & (block < first + one.count))(lambda i=index, n=first: serve(i, block - n))
            first += one.count

    kernel = plgpu.kernel(
        attention_inputs,
        out_type=tuple(
            jax.ShapeDtypeStruct((len(rows[0]), one.count, dim), table.dtype) for one in projections[len(caches) :]
        ),
        grid=(pl.cdiv(total, ROWS), sum(one.count for one in projections)),
        grid_names=("group", "head"),
        compiler_params=NO_SCRATCH,
        scratch_types={
            "head_s": plgpu.SMEM((ROWS, dim), table.dtype),
            "table_s": plgpu.SMEM((ROWS, rope), table.dtype),
            "loaded": plgpu.Barrier(num_arrivals=2),
        },
    )
    heads = kernel(rows, norms, _whole(table), None if at is None else at.reshape(total), list(caches))
    return tuple(one[:total].reshape(slots, length, *one.shape[1:]) for one in heads)


def _whole(x: BFloat16[Array, "B T W"]) -> BFloat16[Array, "rows W"]:
    """The rows of all slots, and zero rows where TMA could not copy all of them."""
    x = x.reshape(-1, x.shape[-1])
    return jnp.pad(x, ((0, -len(x) % LINES), (0, 0))) if len(x) % LINES else x


def _norm_and_rotate(head_s: Ref, table_s: Ref, norm_g: RowNorm) -> None:
    """Of a head [16, D] in shared memory, in place, in pieces of half of what is rotated."""
    dim, half = head_s.shape[1], table_s.shape[1] // 2
    pieces = [pl.ds(start, half) for start in range(0, dim, half)]
    shape = (ROWS, half)
    parts = [load_tile(head_s.at[:, piece], BY_ROW) for piece in pieces]
    squares = [jnp.sum(jnp.square(part.astype(jnp.float32)), axis=1) for part in parts]
    scale = lax.broadcast_in_dim(lax.rsqrt(sum(squares[1:], squares[0]) / dim + norm_g.eps), shape, [0])
    for index, piece in enumerate(pieces):
        weight = lax.broadcast_in_dim(load_tile(norm_g.weight.at[piece], COLUMNS), shape, [1])
        parts[index] = scaled(parts[index], scale, weight, norm_g.form)
    cos, sin = (load_tile(table_s.at[:, piece], BY_ROW).astype(jnp.float32) for piece in pieces[:2])
    first, second = (part.astype(jnp.float32) for part in parts[:2])
    parts[:2] = first * cos - second * sin, second * cos + first * sin
    for piece, part in zip(pieces, parts, strict=True):
        head_s[:, piece] = part.astype(head_s.dtype)
