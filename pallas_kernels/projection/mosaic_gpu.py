"""Mosaic GPU kernels that stream the weights of a projection once past all rows of a call.

    projections        several weights that read the same rows, one launch: every tile of outputs belongs to one weight
    gated_projection   the same outputs of two weights in a tile, joined before they are stored
    projection_shares  one weight, K cut into shares: few outputs and a long K still keep all multiprocessors busy

Rows are the M operand of the products (see skinny_matmul), 64 per warpgroup; the first warpgroup loads for all. The
sums of shares are float32 and are added where the residual and its norm are made, see mosaic_rows.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float

from pallas_kernels.matrix_unit import matrix_unit
from pallas_kernels.projection.tiles import STEP, Tiles
from pallas_kernels.skinny_matmul import BLOCK, operand, stream


def projections(
    x: Float[Array, "T K"], weights: Sequence[Float[Array, "O K"]], tiles: Tiles
) -> tuple[Float[Array, "T O"], ...]:
    """x W^T of every weight, rounded to x's type. T is a multiple of 8."""
    spans = _spans(weights, tiles.columns)
    widths = {span.columns for span in spans}
    work = _Work(x, columns=tiles.columns, operands=1, share=x.shape[1], stages=tiles.stages, widths=widths)

    def projection(x_g, *refs, x_s, weights_s, full, free=None, **results_s):
        weights_g, outs_g = refs[: len(spans)], refs[len(spans) :]
        tile = lax.axis_index("tile")

        def load(along, slot, barrier):
            for span, weight_g in zip(spans, weights_g, strict=True):

                @pl.when(span.holds(tile))
                def _(span=span, weight_g=weight_g):
                    target = weights_s.at[slot, 0, pl.ds(0, span.columns)]
                    plgpu.copy_gmem_to_smem(weight_g.at[span.outputs(tile), along], target, barrier)

        (value,) = work.multiply(x_g, x_s, weights_s, full, free, load)
        for span, out_g in zip(spans, outs_g, strict=True):

            @pl.when(span.holds(tile))
            def _(span=span, out_g=out_g):
                result_s = results_s[_result_name(span.columns)]
                work.send(value[:, : span.columns], result_s, out_g.at[:, span.outputs(tile)])

    return plgpu.kernel(
        projection,
        out_type=tuple(jax.ShapeDtypeStruct((work.rows, len(weight)), x.dtype) for weight in weights),
        grid=(spans[-1].first + spans[-1].tiles,),
        grid_names=("tile",),
        scratch_types=work.scratch | {_result_name(width): work.result(width, x.dtype) for width in widths},
        **work.threads,
    )(x, *weights)


def gated_projection(
    x: Float[Array, "T K"], gate: Float[Array, "O K"], up: Float[Array, "O K"], tiles: Tiles
) -> Float[Array, "T O"]:
    """silu(x gate^T) * (x up^T), rounded once. T is a multiple of 8."""
    columns = tiles.columns
    work = _Work(x, columns=columns, operands=2, share=x.shape[1], stages=tiles.stages)

    def gated_projection(x_g, gate_g, up_g, out_g, *, x_s, weights_s, full, free=None, result_s):
        here = pl.ds(lax.axis_index("tile") * columns, columns)

        def load(along, slot, barrier):
            for index, weight_g in enumerate((gate_g, up_g)):
                plgpu.copy_gmem_to_smem(weight_g.at[here, along], weights_s.at[slot, index], barrier)

        gate, up = work.multiply(x_g, x_s, weights_s, full, free, load)
        work.send(gate / (1.0 + jnp.exp(-gate)) * up, result_s, out_g.at[:, here])

    return plgpu.kernel(
        gated_projection,
        out_type=jax.ShapeDtypeStruct((work.rows, len(gate)), x.dtype),
        grid=(len(gate) // columns,),
        grid_names=("tile",),
        scratch_types=work.scratch | {"result_s": work.result(columns, x.dtype)},
        **work.threads,
    )(x, gate, up)


def projection_shares(x: Float[Array, "T K"], weight: Float[Array, "O K"], tiles: Tiles) -> Float[Array, "shares T O"]:
    """Partial sums of x W^T over equal shares of K, float32. T is a multiple of 8."""
    columns, share = tiles.columns, x.shape[1] // tiles.shares
    work = _Work(x, columns=columns, operands=1, share=share, stages=tiles.stages)

    def projection_shares(x_g, weight_g, out_g, *, x_s, weights_s, full, free=None, result_s):
        here, index = pl.ds(lax.axis_index("tile") * columns, columns), lax.axis_index("share")

        def load(along, slot, barrier):
            plgpu.copy_gmem_to_smem(weight_g.at[here, along], weights_s.at[slot, 0], barrier)

        (value,) = work.multiply(x_g, x_s, weights_s, full, free, load, start=index * share)
        work.send(value, result_s, out_g.at[index, :, here])

    return plgpu.kernel(
        projection_shares,
        out_type=jax.ShapeDtypeStruct((tiles.shares, work.rows, len(weight)), jnp.float32),
        grid=(len(weight) // columns, tiles.shares),
        grid_names=("tile", "share"),
        scratch_types=work.scratch | {"result_s": work.result(columns, jnp.float32)},
        **work.threads,
    )(x, weight)


@dataclasses.dataclass(frozen=True)
class _Span:
    """The tiles of one of several weights."""

    first: int
    tiles: int
    columns: int

    def holds(self, tile):
        return (tile >= self.first) & (tile < self.first + self.tiles)

    def outputs(self, tile):
        return pl.ds((tile - self.first) * self.columns, self.columns)


def _spans(weights, columns):
    spans, first = [], 0
    for weight in weights:
        width = min(columns, len(weight))
        spans.append(_Span(first=first, tiles=len(weight) // width, columns=width))
        first += spans[-1].tiles
    return spans


def _result_name(columns):
    return f"result_{columns}_s"


class _Work:
    """What the kernels share: shared memory, the loop over K, and the way of a result to memory."""

    def __init__(self, x: Array, *, columns: int, operands: int, share: int, stages: int, widths: Iterable[int] = ()):
        self.unit = matrix_unit()
        self.rows = x.shape[0]
        self.columns = columns
        self.block = self.unit.block_rows(min(self.rows, BLOCK), (columns, *widths))
        self.warpgroups = pl.cdiv(self.rows, self.block)
        self.operands = operands
        self.steps = share // STEP
        self.stages = min(stages, self.steps)

    @property
    def threads(self) -> dict[str, Any]:
        """Arguments of the launch."""
        return {"num_threads": self.warpgroups, "thread_name": "warpgroup"} if self.warpgroups > 1 else {}

    @property
    def scratch(self) -> dict[str, Any]:
        """Shared memory but that of results."""
        arrivals = 1 + self.operands
        scratch = {
            "x_s": operand(self.stages, self.warpgroups * self.block, STEP),
            "weights_s": operand(self.stages, self.operands, self.columns, STEP),
            "full": plgpu.Barrier(num_arrivals=arrivals, num_barriers=self.stages),
        }
        if self.warpgroups > 1:
            scratch["free"] = plgpu.Barrier(num_arrivals=self.warpgroups, num_barriers=self.stages)
        return scratch

    def result(self, columns: int, dtype: Any) -> Any:
        """Shared memory of a result [rows, columns]."""
        return plgpu.SMEM((self.warpgroups * self.block, columns), dtype)

    def multiply(
        self, x_g: Any, x_s: Any, weights_s: Any, full: Any, free: Any, load: Callable, start: Any = 0
    ) -> tuple[jax.Array, ...]:
        """This warpgroup's rows times each operand of the tile; `load(columns, slot, barrier)` loads the weights."""
        warpgroup = self._warpgroup()

        def load_step(index, slot, barrier):
            along = pl.ds(start + index * STEP, STEP)
            plgpu.copy_gmem_to_smem(x_g.at[:, along], x_s.at[slot, pl.ds(0, self.rows)], barrier)
            load(along, slot, barrier)

        def operands(slot):
            rows = x_s.at[slot, pl.ds(warpgroup * self.block, self.block)]
            return [[(rows, weights_s.at[slot, index].T)] for index in range(self.operands)]

        return stream(
            self.unit,
            load_step,
            operands,
            full,
            shapes=[self.columns] * self.operands,
            rows=self.block,
            steps=self.steps,
            stages=self.stages,
            free=free,
            loads=warpgroup == 0,
        )

    def send(self, value: jax.Array, result_s: Any, target: Any) -> None:
        """Stores this warpgroup's rows [.., columns] in the target [rows, columns]; the rows that pad stay here."""
        for index in range(self.warpgroups):

            @pl.when(self._warpgroup() == index)
            def _(index=index):
                first = index * self.block
                result_s[pl.ds(first, self.block)] = value.astype(result_s.dtype)
                plgpu.commit_smem()  # the stores must be visible to TMA
                kept = pl.ds(first, min(self.block, self.rows - first))
                plgpu.copy_smem_to_gmem(result_s.at[kept], target.at[kept])
                plgpu.wait_smem_to_gmem(0)

    def _warpgroup(self):
        return lax.axis_index("warpgroup") if self.warpgroups > 1 else jnp.int32(0)
