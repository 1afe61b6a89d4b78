"""Block attention on the tensor cores, the context split over many blocks of threads.

One block serves one slot, one key/value head (all of its query heads or a group of them) and one split of the slot's
tiles. A producer warpgroup streams tiles of keys and values into a ring of shared memory; one or two consumer
warpgroups hold 64 query rows each (query heads one after the other, the new rows of each) and keep a running softmax.
Each split leaves a normalised output and the logarithm of its weights' sum; a second, small kernel joins them.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float, Int

from pallas_kernels.block_attention.combine import combine
from pallas_kernels.block_attention.context import Context, PagedContext, RingContext
from pallas_kernels.block_attention.gate import gated
from pallas_kernels.block_attention.layout import (
    ROW,
    SWIZZLE,
    TILE,
    UNSEEN,
    Ref,
    constant,
    load_heads,
    store_heads,
)
from pallas_kernels.block_attention.tiles import MAX_CONSUMERS, WARPGROUP_ROWS, Geometry, Tiles
from pallas_kernels.matrix_unit import MatrixUnit, matrix_unit
from pallas_kernels.shared_memory import tiled

HIDDEN = 2 * UNSEEN  # score of a position that is not visible: its weight is 0, even in a row that has seen nothing
GRID = ("slot", "head", "split", "group")


# Functions of their own for the compiler: the layers of a model trace and lower each kernel once.
@functools.partial(jax.jit, static_argnames="tiles")
def paged_block_attention_mosaic_gpu(
    q: Float[Array, "B T N D"],
    k_pages: Float[Array, "P page K D"],
    v_pages: Float[Array, "P page K D"],
    page_table: Int[Array, "B pages"],
    start: Int[Array, " B"],
    gate: Float[Array, "B T N G"] | None,
    *,
    tiles: Tiles,
) -> Float[Array, "B T N D"]:
    """Reads each page where it lies."""
    context = functools.partial(PagedContext.of, rows=q.shape[1], tile=tiles.keys)
    operands = (k_pages, v_pages, page_table, start)
    return _attend(q, context, operands, gate, kv_heads=k_pages.shape[2], tiles=tiles)


@functools.partial(jax.jit, static_argnames=("window", "causal", "tiles"))
def ring_block_attention_mosaic_gpu(
    q: Float[Array, "B T N D"],
    ring_k: Float[Array, "B R K D"],
    ring_v: Float[Array, "B R K D"],
    block_k: Float[Array, "B T K D"],
    block_v: Float[Array, "B T K D"],
    length: Int[Array, " B"],
    *,
    window: int | None,
    causal: bool,
    tiles: Tiles,
) -> Float[Array, "B T N D"]:
    """Reads only the ring's tiles that hold a visible position."""
    context = functools.partial(RingContext.of, tile=tiles.keys, window=window, causal=causal)
    operands = (ring_k, ring_v, block_k, block_v, length)
    return _attend(q, context, operands, None, kv_heads=ring_k.shape[2], tiles=tiles)


def _attend(
    q: Float[Array, "B T N D"],
    make_context: Callable[..., Context],
    operands: Sequence[jax.Array],
    gate: Float[Array, "B T N G"] | None,
    *,
    kv_heads: int,
    tiles: Tiles,
) -> Float[Array, "B T N D"]:
    slots, rows, heads, dim = q.shape
    geometry = Geometry.of(rows, heads // kv_heads, dim)
    more_rows = (0, 0), (0, geometry.rows - rows), (0, 0), (0, 0)
    q, gate = jnp.pad(q, more_rows), None if gate is None else jnp.pad(gate, more_rows)
    whole = [jax.ShapeDtypeStruct(q.shape, q.dtype)]
    split = (tiles.splits, slots, kv_heads, geometry.consumers, WARPGROUP_ROWS)
    in_parts = [jax.ShapeDtypeStruct((*split, dim), q.dtype), jax.ShapeDtypeStruct(split, jnp.float32)]

    unit = matrix_unit()

    def block_attention(*refs, **scratch):
        _block(unit, *refs, make_context=make_context, geometry=geometry, tiles=tiles, **scratch)

    kernel = plgpu.kernel(
        block_attention,
        out_type=whole if tiles.splits == 1 else in_parts,
        grid=(slots, kv_heads, tiles.splits, geometry.consumers // tiles.consumers_of(geometry)),
        grid_names=GRID,
        num_threads=tiles.consumers_of(geometry) + 1,
        thread_name="warpgroup",
        scratch_types=Shared.types(geometry, tiles, q.dtype),
        compiler_params=plgpu.CompilerParams(approx_math=True),
    )
    results = kernel(q, operands)
    if tiles.splits == 1:
        joined = gated(results[0], gate)
    else:
        parts, normalisers = results
        joined = combine(parts, normalisers, gate, geometry)
    return joined[:, :rows]


@dataclasses.dataclass(frozen=True)
class Shared:
    """Shared memory and barriers of one block of threads; c is a consumer, s a stage."""

    q: Ref  # [c, 64, D]: the queries, and in the end the output
    k: Ref  # [s, keys, D]
    v: Ref  # [s, keys, D]
    normaliser: Ref  # [c, 64] float32
    q_full: Ref  # [c]
    k_full: Ref  # [s]
    v_full: Ref  # [s]
    k_empty: Ref  # [s]
    v_empty: Ref  # [s]
    weights: Ref | None = None  # [c, 64, keys], unless they stay in registers

    @staticmethod
    def types(geometry: Geometry, tiles: Tiles, dtype: Any) -> dict[str, Any]:
        """What to allocate, by field name."""
        consumers, stages = tiles.consumers_of(geometry), tiles.stages

        def operand(*shape):
            return plgpu.SMEM(shape, dtype, transforms=SWIZZLE)

        types = {
            "q": operand(consumers, WARPGROUP_ROWS, geometry.head_dim),
            "k": operand(stages, tiles.keys, geometry.head_dim),
            "v": operand(stages, tiles.keys, geometry.head_dim),
            "normaliser": plgpu.SMEM((consumers, WARPGROUP_ROWS), jnp.float32),
            "q_full": plgpu.Barrier(num_arrivals=geometry.heads_per_consumer, num_barriers=consumers),
            "k_full": plgpu.Barrier(num_barriers=stages),
            "v_full": plgpu.Barrier(num_barriers=stages),
            "k_empty": plgpu.Barrier(num_arrivals=consumers, num_barriers=stages),
            "v_empty": plgpu.Barrier(num_arrivals=consumers, num_barriers=stages),
        }
        if tiles.stores_weights:
            line = min(tiles.keys * jnp.dtype(dtype).itemsize, 128)
            types["weights"] = tiled(dtype, line, consumers, WARPGROUP_ROWS, tiles.keys)
        return types

    def of_consumer(self, warpgroup: jax.Array) -> Self:
        """The same, with the queries, normaliser and weights of one consumer."""
        own = {name: getattr(self, name).at[warpgroup] for name in ("q", "normaliser", "q_full")}
        weights = None if self.weights is None else self.weights.at[warpgroup]
        return dataclasses.replace(self, weights=weights, **own)


@dataclasses.dataclass(frozen=True)
class Work:
    """What one block of threads does: `steps` tiles of the slot's context from tile `first` on. Scalars."""

    slot: jax.Array
    head: jax.Array
    split: jax.Array
    first: jax.Array
    steps: jax.Array

    @classmethod
    def of(cls, count: jax.Array, splits: int) -> Self:
        """Equal parts of the slot's tiles; with fewer tiles than splits some blocks have none."""
        slot, head, split, _ = (lax.axis_index(name) for name in GRID)
        first, end = (lax.div(part * count, splits) for part in (split, split + 1))
        return cls(slot=slot, head=head, split=split, first=first, steps=end - first)


def _block(
    unit: MatrixUnit,
    q_g: Ref,  # [B, T, N, D]
    operands_g: Sequence[Ref],  # of the context
    *results_g: Ref,  # [B, T, N, D]; or its parts [splits, B, K, c, 64, D] and their normalisers [splits, B, K, c, 64]
    make_context: Callable[..., Context],
    geometry: Geometry,
    tiles: Tiles,
    **scratch: Ref,
) -> None:
    shared = Shared(**scratch)
    context = make_context(*operands_g, slot=lax.axis_index("slot"))
    work = Work.of(context.count, tiles.splits)
    warpgroup, consumers = lax.axis_index("warpgroup"), tiles.consumers_of(geometry)
    # Three warpgroups get 168 registers a thread each, too few for a consumer; two get all that they can address.
    scarce = consumers == MAX_CONSUMERS

    @pl.when(warpgroup == consumers)
    def _producer():
        if scarce:
            plgpu.set_max_registers(40, action="decrease")
        _produce(context, work, shared, tiles)

    @pl.when(warpgroup < consumers)
    def _consumer():
        if scarce:
            plgpu.set_max_registers(232, action="increase")
        own = shared.of_consumer(warpgroup)
        consumer = lax.axis_index("group") * consumers + warpgroup
        load_heads(q_g.at[work.slot], own.q, own.q_full, work.head, consumer, geometry)
        plgpu.barrier_wait(own.q_full)
        output, normaliser = _consume(unit, context, work, own, geometry, tiles)
        _store(output, normaliser, results_g, work, consumer, own, geometry)


def _produce(context: Context, work: Work, shared: Shared, tiles: Tiles) -> None:
    def step(i, _):
        stage = lax.rem(i, tiles.stages)
        copy_keys, copy_values = context.copies(work.head, work.first + i)

        @pl.when(i >= tiles.stages)
        def _():
            plgpu.barrier_wait(shared.k_empty.at[stage])

        copy_keys(shared.k.at[stage], shared.k_full.at[stage])

        # Keys are released before values, and the next ones may start to come at once.
        @pl.when(i >= tiles.stages)
        def _():
            plgpu.barrier_wait(shared.v_empty.at[stage])

        copy_values(shared.v.at[stage], shared.v_full.at[stage])
        return ()

    def drain(i, _):
        stage = lax.rem(i, tiles.stages)
        plgpu.barrier_wait(shared.k_empty.at[stage])
        plgpu.barrier_wait(shared.v_empty.at[stage])
        return ()

    lax.fori_loop(0, work.steps, step, ())
    # The releases of the last tiles: nobody else waits for them, and a barrier must not be left half way.
    lax.fori_loop(jnp.maximum(work.steps - tiles.stages, 0), work.steps, drain, ())


def _consume(
    unit: MatrixUnit, context: Context, work: Work, shared: Shared, geometry: Geometry, tiles: Tiles
) -> tuple[jax.Array, jax.Array]:
    """Output [64, D] and base 2 logarithm of the weights' sum [64] over this block's tiles."""
    scale = math.log2(math.e) / math.sqrt(geometry.head_dim)
    shape = (WARPGROUP_ROWS, tiles.keys)
    query = plgpu.broadcasted_iota(jnp.int32, shape, 0, layout=TILE)
    row = query & (geometry.rows - 1)  # a power of two
    column = plgpu.broadcasted_iota(jnp.int32, shape, 1, layout=TILE)

    def step(i, carry):
        largest, total, output = carry
        stage = lax.rem(i, tiles.stages)

        plgpu.barrier_wait(shared.k_full.at[stage])
        scores = unit.multiply((shared.q, shared.k.at[stage].T)) * scale
        plgpu.barrier_arrive(shared.k_empty.at[stage])

        visible = context.visible(work.first + i, row, column)
        scores = jnp.where(visible, scores, HIDDEN)
        before, largest = largest, jnp.maximum(largest, jnp.max(scores, axis=1))
        shrink = jnp.exp2(before - largest)
        weights = jnp.exp2(scores - lax.broadcast_in_dim(largest, shape, [0]))
        total = total * shrink + jnp.sum(weights, axis=1)
        output = output * lax.broadcast_in_dim(shrink, output.shape, [0])

        weights = weights.astype(shared.v.dtype)
        if shared.weights is not None:
            shared.weights[...] = weights
            plgpu.commit_smem()  # ordinary stores become visible to the tensor cores
            weights = shared.weights
        plgpu.barrier_wait(shared.v_full.at[stage])
        if tiles.accumulate == "in_place":
            output = unit.add(output, weights, shared.v.at[stage])
        else:
            output = output + unit.multiply((weights, shared.v.at[stage]))
        plgpu.barrier_arrive(shared.v_empty.at[stage])
        return largest, total, output

    start = (
        constant(UNSEEN, (WARPGROUP_ROWS,), ROW),
        constant(0.0, (WARPGROUP_ROWS,), ROW),
        constant(0.0, (WARPGROUP_ROWS, geometry.head_dim), TILE),
    )
    largest, total, output = lax.fori_loop(0, work.steps, step, start)
    # A split without a visible position has a sum of 0: its output stays 0, and its logarithm makes its share 0.
    inverse = jnp.where(total > 0.0, 1.0 / total, 0.0)
    normaliser = jnp.where(total > 0.0, largest + jnp.log2(total), UNSEEN)
    return output * lax.broadcast_in_dim(inverse, output.shape, [0]), normaliser


def _store(
    output: jax.Array,
    normaliser: jax.Array,
    results_g: Sequence[Ref],
    work: Work,
    consumer: jax.Array,
    shared: Shared,
    geometry: Geometry,
) -> None:
    shared.q[...] = output.astype(shared.q.dtype)  # no product reads the queries any more
    if len(results_g) == 1:
        plgpu.commit_smem()
        store_heads(shared.q, results_g[0].at[work.slot], work.head, consumer, geometry)
    else:
        part_g, normaliser_g = (ref.at[work.split, work.slot, work.head, consumer] for ref in results_g)
        shared.normaliser[...] = normaliser
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(shared.q, part_g)
        plgpu.copy_smem_to_gmem(shared.normaliser, normaliser_g)
    plgpu.wait_smem_to_gmem(0)
