"""The parts of the output that the splits of a context leave, joined by the weight each of them has.

Split s has the softmax output o_s over its own positions and the base 2 logarithm n_s of its weights' sum:

    o = sum_s 2^(n_s) o_s / sum_s 2^(n_s)

times sigmoid(gate) if the layer has one.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, BFloat16, Float32

from pallas_kernels.block_attention.layout import ROW, SWIZZLE, TILE, UNSEEN, Ref, constant, load_heads, store_heads
from pallas_kernels.block_attention.tiles import WARPGROUP_ROWS, Geometry

COLUMNS = 64  # of the output, per block of threads: short contexts leave few parts, and many blocks read them faster


def combine(
    parts: BFloat16[Array, "splits B K c 64 D"],
    normalisers: Float32[Array, "splits B K c 64"],
    gate: BFloat16[Array, "B T N G"] | None,
    geometry: Geometry,
    *,
    stages: int = 8,
) -> BFloat16[Array, "B T N D"]:
    """The output of all positions; a part that saw none is 0 and has the normaliser UNSEEN.

    The last D of G numbers are a head's gate. `stages` parts are in flight.
    """
    splits, slots, kv_heads, consumers, _, dim = parts.shape

    tile = plgpu.SMEM((WARPGROUP_ROWS, COLUMNS), parts.dtype, transforms=SWIZZLE)
    gate_full = plgpu.Barrier(num_arrivals=geometry.heads_per_consumer)

    def combine_splits(*refs, **scratch):
        _block(*refs, **scratch, splits=splits, stages=stages, geometry=geometry)

    kernel = plgpu.kernel(
        combine_splits,
        out_type=jax.ShapeDtypeStruct((slots, geometry.rows, kv_heads * geometry.groups, dim), parts.dtype),
        grid=(slots, kv_heads, consumers, dim // COLUMNS),
        grid_names=("slot", "head", "consumer", "columns"),
        scratch_types={"output_s": tile} | ({} if gate is None else {"gate_s": tile, "gate_full": gate_full}),
        compiler_params=plgpu.CompilerParams(approx_math=True),
    )
    return kernel(parts, normalisers, gate)


def _block(
    parts_g: Ref,  # [splits, B, K, c, 64, D]
    normalisers_g: Ref,  # [splits, B, K, c, 64]
    gate_g: Ref | None,  # [B, T, N, G]
    output_g: Ref,  # [B, T, N, D]
    *,
    output_s: Ref,  # [64, COLUMNS]
    gate_s: Ref = None,  # [64, COLUMNS]; both only with a gate
    gate_full: Ref = None,
    splits: int,
    stages: int,
    geometry: Geometry,
) -> None:
    slot, head, consumer = (lax.axis_index(name) for name in ("slot", "head", "consumer"))
    first = lax.axis_index("columns") * COLUMNS
    columns = pl.ds(first, COLUMNS)
    shape = (WARPGROUP_ROWS, COLUMNS)
    if gate_g is not None:
        behind = gate_g.shape[-1] - geometry.head_dim
        load_heads(gate_g.at[slot, :, :, pl.ds(behind + first, COLUMNS)], gate_s, gate_full, head, consumer, geometry)

    def step(_, part_s, normaliser_s, carry):
        largest, total, output = carry
        normaliser = plgpu.load(normaliser_s, layout=ROW)
        part = plgpu.load(part_s, layout=TILE).astype(jnp.float32)
        plgpu.commit_smem()  # both are read before the next copies overwrite them
        before, largest = largest, jnp.maximum(largest, normaliser)
        shrink, weight = jnp.exp2(before - largest), jnp.exp2(normaliser - largest)
        output = output * lax.broadcast_in_dim(shrink, shape, [0]) + part * lax.broadcast_in_dim(weight, shape, [0])
        return largest, total * shrink + weight, output

    pipeline = plgpu.emit_pipeline(
        step,
        grid=(splits,),
        in_specs=[
            plgpu.BlockSpec((None, *shape), lambda split: (split, 0, 0), transforms=SWIZZLE),
            plgpu.BlockSpec((None, WARPGROUP_ROWS), lambda split: (split, 0)),
        ],
        max_concurrent_steps=stages,
        init_carry=(
            constant(UNSEEN, (WARPGROUP_ROWS,), ROW),
            constant(0.0, (WARPGROUP_ROWS,), ROW),
            constant(0.0, shape, TILE),
        ),
    )
    _, total, output = pipeline(
        parts_g.at[:, slot, head, consumer, :, columns], normalisers_g.at[:, slot, head, consumer]
    )
    output = output * lax.broadcast_in_dim(1.0 / total, shape, [0])
    if gate_g is not None:
        plgpu.barrier_wait(gate_full)
        output = output / (1.0 + jnp.exp(-plgpu.load(gate_s, layout=TILE).astype(jnp.float32)))
    output_s[...] = output.astype(output_s.dtype)
    plgpu.commit_smem()
    store_heads(output_s, output_g.at[slot, :, :, columns], head, consumer, geometry)
    plgpu.wait_smem_to_gmem(0)
