"""Float8 scores of the whole vocabulary, and the best score of every 64 tokens.

Persistent blocks walk over the vocabulary. In each, a producer warpgroup streams chunks of 128 columns of the head and
of the queries through a ring in shared memory; each consumer warpgroup multiplies its 64 rows of the head with all
queries, high and low parts side by side. Tensor cores keep only about 14 bits of a float8 sum, so every chunk starts
from a fresh accumulator and is added up in float32 registers.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float

from pallas_kernels.device import architecture, num_sms
from pallas_kernels.matrix_unit import MatrixUnit, matrix_unit
from pallas_kernels.retrieval.coarse_head import CoarseHead
from pallas_kernels.retrieval.selection import TILE
from pallas_kernels.retrieval.tiles import CHUNK, Tiles
from pallas_kernels.shared_memory import tiled

WGMMA = plgpu.Layout.WGMMA
# Of [R, 64]: a warp holds every fourth group of four queries, eight of its lanes one of them.
BY_QUERY = plgpu.Layout.TILED(
    plgpu.Tiling(((16, 32), (4, 32), (4,))), warp_dims=(-5,), lane_dims=(-3, -2), vector_dim=-1
)
# A reduction across warps goes through a scratch buffer that all warpgroups of a block share, with nothing to keep them
# apart, and the interpreter does not see it. Without a buffer such a reduction does not compile.
NO_SCRATCH = plgpu.CompilerParams(reduction_scratch_bytes=0)
# Registers per thread of a consumer and of the producer: what the launch hands out evenly, moved to the consumers.
REGISTERS = {
    "wgmma": {2: (232, 40), 3: (160, 32), 4: (112, 32)},
    "mma": {2: (216, 72)},
}


def coarse_scores(
    queries: Float[Array, "2*R H"], coarse_head: CoarseHead, tiles: Tiles
) -> tuple[Float[Array, "R tiles 64"], Float[Array, "R tiles"]]:
    """Scores of all tokens for R queries, given as R high and R low float8 parts, and the best score of each tile.

    R is one of tiles.ROWS. Tiles may be added at the end so that every block has whole ones; their tokens score -inf.
    """
    rows = queries.shape[0] // 2
    vocabulary, hidden = coarse_head.values.shape
    walk = Walk(
        vocabulary=vocabulary,
        hidden=hidden,
        sizes=tiles,
        blocks=tiles.blocks or num_sms(),
        unit=matrix_unit(),
        registers=REGISTERS[architecture().products][tiles.consumers],
    )
    scale = jnp.pad(coarse_head.scale, (0, -vocabulary % TILE))
    barrier = plgpu.Barrier
    if tiles.cluster > 1:  # a slot is free when the consumers of both blocks have read the shared queries
        barrier = functools.partial(plgpu.ClusterBarrier, collective_axes=("rank",))
    kernel = plgpu.kernel(
        functools.partial(_block, walk),
        out_type=(
            jax.ShapeDtypeStruct((rows, walk.tiles, TILE), jnp.float32),
            jax.ShapeDtypeStruct((walk.tiles, rows), jnp.float32),
        ),
        grid=(walk.clusters,),
        grid_names=("cluster",),
        cluster=(tiles.cluster,),
        cluster_names=("rank",),
        kernel_name="retrieval_coarse_scores",
        compiler_params=NO_SCRATCH,
        num_threads=tiles.consumers + 1,
        thread_name="warpgroup",
        scratch_types={
            "head_ring": tiled(jnp.float8_e4m3fn, 128, tiles.stages, tiles.tokens, CHUNK),
            "query_ring": tiled(jnp.float8_e4m3fn, 128, tiles.stages, 2 * rows, CHUNK),
            "staging": tiled(jnp.float32, 128, tiles.consumers, rows, TILE),
            "filled": plgpu.Barrier(num_arrivals=2, num_barriers=tiles.stages),  # head and queries have arrived
            "free": barrier(num_arrivals=tiles.consumers, num_barriers=tiles.stages),
        },
    )
    scores, best = kernel(coarse_head.values, queries, scale)
    return scores, best.T


@dataclasses.dataclass(frozen=True)
class Walk:
    """Which tokens each block works on, and when."""

    vocabulary: int
    hidden: int
    sizes: Tiles
    blocks: int
    unit: MatrixUnit
    registers: tuple[int, int]  # of a consumer and of the producer

    @property
    def cluster_steps(self) -> int:
        """Steps of all clusters together: in one step each block of a cluster works on `sizes.tokens` tokens."""
        return pl.cdiv(self.vocabulary, self.sizes.tokens * self.sizes.cluster)

    @property
    def clusters(self) -> int:
        return min(max(self.blocks // self.sizes.cluster, 1), self.cluster_steps)

    @property
    def tiles(self) -> int:
        return self.cluster_steps * self.sizes.cluster * self.sizes.consumers

    @property
    def chunks(self) -> int:
        return pl.cdiv(self.hidden, CHUNK)

    def steps(self):
        """Of this block, the same for all blocks of a cluster."""
        return pl.cdiv(self.cluster_steps - lax.axis_index("cluster"), self.clusters)

    def first_tile(self, step):
        """Of this block in one of its steps."""
        cluster_step = step * self.clusters + lax.axis_index("cluster")
        return (cluster_step * self.sizes.cluster + lax.axis_index("rank")) * self.sizes.consumers


def _block(walk, head, queries, scale, scores, best, *, head_ring, query_ring, staging, filled, free):
    consumer_registers, producer_registers = walk.registers
    warpgroup = lax.axis_index("warpgroup")

    @pl.when(warpgroup == walk.sizes.consumers)
    def _():
        plgpu.set_max_registers(producer_registers, action="decrease")
        _produce(walk, head, queries, head_ring, query_ring, filled, free)

    @pl.when(warpgroup < walk.sizes.consumers)
    def _():
        plgpu.set_max_registers(consumer_registers, action="increase")
        _consume(walk, warpgroup, scale, scores, best, head_ring, query_ring, staging, filled, free)


def _produce(walk, head, queries, head_ring, query_ring, filled, free):
    """Fills the ring. Reads past an end of the head or the queries give zeros."""
    stages, tokens = walk.sizes.stages, walk.sizes.tokens
    fills = walk.steps() * walk.chunks

    @pl.loop(0, fills)
    def _(fill):
        slot = lax.rem(fill, stages)
        first = walk.first_tile(lax.div(fill, walk.chunks)) * TILE
        columns = pl.ds(lax.rem(fill, walk.chunks) * CHUNK, CHUNK)

        @pl.when(fill >= stages)
        def _():
            plgpu.barrier_wait(free.at[slot])

        plgpu.copy_gmem_to_smem(head.at[pl.ds(first, tokens), columns], head_ring.at[slot], filled.at[slot])
        # Each block of the cluster fetches its share of the queries for all of them.
        shared = "rank" if walk.sizes.cluster > 1 else None
        plgpu.copy_gmem_to_smem(queries.at[:, columns], query_ring.at[slot], filled.at[slot], collective_axes=shared)

    # Nobody may leave while another block of the cluster can still write here or signal here.
    @pl.loop(jnp.maximum(fills - stages, 0), fills)
    def _(fill):
        plgpu.barrier_wait(free.at[lax.rem(fill, stages)])


def _consume(walk, warpgroup, scale, scores, best, head_ring, query_ring, staging, filled, free):
    """Scores one tile per step."""

    @pl.loop(0, walk.steps())
    def _(step):
        tile = walk.first_tile(step) + warpgroup
        # Asked for early: the products hide its way through memory. A tile past the end borrows the last one's.
        first = jnp.minimum(tile * TILE, scale.shape[0] - TILE)
        tile_scale = plgpu.load(scale.at[pl.ds(first, TILE)], layout=WGMMA.reduce(1), optimized=False)
        products = _products(walk, step, warpgroup, head_ring, query_ring, filled, free)  # [64, R]
        products *= lax.broadcast_in_dim(tile_scale, products.shape, [0])
        if walk.tiles * TILE != walk.vocabulary:
            token = tile * TILE + plgpu.broadcasted_iota(jnp.int32, products.shape, 0, layout=WGMMA)
            products = jnp.where(token < walk.vocabulary, products, -jnp.inf)
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)  # the step before may still leave from here
        # Transposed on its way through shared memory: every query's scores are contiguous.
        staging.at[warpgroup].T[...] = plgpu.layout_cast(products, plgpu.Layout.WGMMA_TRANSPOSED)
        plgpu.commit_smem()  # the copy reads what this warpgroup has written
        plgpu.copy_smem_to_gmem(staging.at[warpgroup], scores.at[:, tile])
        # Read again in a layout that keeps each query's scores within a warp; see NO_SCRATCH.
        best[tile] = jnp.max(plgpu.load(staging.at[warpgroup], layout=BY_QUERY, optimized=False), axis=1)

    plgpu.wait_smem_to_gmem(0)


def _products(walk, step, warpgroup, head_ring, query_ring, filled, free):
    """Head tile [64, H] times queries [R, H], high and low parts added."""
    rows = query_ring.shape[1] // 2
    tile = pl.ds(warpgroup * TILE, TILE)

    def chunk(index, total):
        slot = lax.rem(step * walk.chunks + index, walk.sizes.stages)
        plgpu.barrier_wait(filled.at[slot])

        products = _chunk(walk.unit, head_ring.at[slot, tile], query_ring.at[slot], rows)
        plgpu.barrier_arrive(free.at[slot])
        return total + products

    return lax.fori_loop(0, walk.chunks, chunk, _zeros(rows))


def _chunk(unit: MatrixUnit, head, queries, rows):
    """The products [64, R] of one chunk."""
    if 2 * rows <= unit.widest:
        both = unit.multiply((head, queries.T))
        return both[:, :rows] + both[:, rows:]

    def add(part, total):
        return unit.add(total, head, queries.at[pl.ds(part * rows, rows)].T)

    return lax.fori_loop(0, 2, add, _zeros(rows))


def _zeros(rows):
    return plgpu.layout_cast(jnp.zeros((TILE, rows), jnp.float32), WGMMA)
