"""From the projections of a block to what the replay kernel reads, in one Mosaic GPU kernel.

A thread block serves one slot and either a key head (its keys and queries, and the recorded keys) or a value head (its
values and gates). The caches are changed where they lie: each thread block reads its part of the convolution's window
and of the records before it writes the new block's there, and no other one touches that part.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, BFloat16, Float, Int

from pallas_kernels.bf16_parts import PARTS, split
from pallas_kernels.gated_delta.log_decay import split_decay
from pallas_kernels.gated_delta.mosaic_replay_operands import BLOCK, DECAY, FACTOR, GATES, HIGH, LOW
from pallas_kernels.warp_rows import BY_ROW, COLUMNS, NO_SCRATCH, load_tile

DIM = 128  # of a key head and of a value head: a line of 128 channels
WIDTH = 4  # taps of the convolution
# Of [128, 4]: a thread has all taps of one channel.
BY_CHANNEL = plgpu.Layout.TILED(
    plgpu.Tiling(((DIM, WIDTH), (32, WIDTH))), warp_dims=(-4,), lane_dims=(-2,), vector_dim=-1
)


def replay_inputs(
    mixed: BFloat16[Array, "B 16 channels"],
    a: BFloat16[Array, "B 16 Nv"],
    b: BFloat16[Array, "B 16 Nv"],
    taps: BFloat16[Array, "channels w"],
    a_log: Float[Array, " Nv"],
    dt_bias: Float[Array, " Nv"],
    accepted: Int[Array, " B"],
    length: Int[Array, " B"],
    conv_ref,  # bfloat16 [B, 16+w-1, channels], changed in place
    keys_ref,  # float32 [B, 16, Nk, 128], the records' keys, changed in place
    decays_ref,  # float32 [B, 16, Nv], the records' log decays, changed in place
    *,
    key_heads: int,
) -> tuple[BFloat16[Array, "B Nk 144 128"], Float[Array, "B Nv 4 32"], Float[Array, "B 16 Nv 128"]]:
    """The operands `pack_rows` and `pack_gates` make, and the values."""
    slots, value_heads = len(mixed), a.shape[2]
    group = value_heads // key_heads

    def gated_delta_inputs(
        mixed_g, a_g, b_g, taps_g, a_log_g, dt_bias_g, accepted_g, length_g, conv_g, keys_g, decays_g,
        rows_g, gates_g, values_g, *, window_s, taps_s, gates_s, loaded, both_loaded,
    ):  # fmt: skip
        slot, key_head, part = (lax.axis_index(name) for name in ("slot", "key_head", "part"))
        accepted = accepted_g[slot]

        def load(index, channels, loaded):
            """The window before the block, then the block: rows that the convolution reads."""
            before, block = (window_s.at[index, rows] for rows in (pl.ds(0, WIDTH - 1), pl.ds(WIDTH - 1, BLOCK)))
            plgpu.copy_gmem_to_smem(conv_g.at[slot, pl.ds(accepted, WIDTH - 1), channels], before, loaded)
            plgpu.copy_gmem_to_smem(mixed_g.at[slot, :, channels], block, loaded)
            taps = load_tile(taps_g.at[channels], BY_CHANNEL).astype(jnp.float32)
            place = plgpu.broadcasted_iota(jnp.int32, (DIM, WIDTH), 1, layout=BY_CHANNEL)
            for tap in range(WIDTH):  # turned: a tap of all channels side by side
                taps_s[index, tap] = jnp.sum(jnp.where(place == tap, taps, 0.0), axis=1)

        def convolved(index, channels):
            total = None
            for tap in range(WIDTH):
                row = load_tile(window_s.at[index, pl.ds(tap, BLOCK)], BY_ROW).astype(jnp.float32)
                term = row * lax.broadcast_in_dim(load_tile(taps_s.at[index, tap], COLUMNS), (BLOCK, DIM), [1])
                total = term if total is None else total + term
            assert total is not None
            plgpu.copy_smem_to_gmem(window_s.at[index], conv_g.at[slot, :, channels])
            # Rounded where torch rounds.
            x = total.astype(jnp.bfloat16).astype(jnp.float32)
            return (x / (1.0 + jnp.exp(-x))).astype(jnp.bfloat16).astype(jnp.float32)

        @pl.when(part == 0)
        def _():
            queries = pl.ds(key_head * DIM, DIM)
            keys = pl.ds((key_heads + key_head) * DIM, DIM)
            load(0, keys, both_loaded)
            load(1, queries, both_loaded)
            row = plgpu.broadcasted_iota(jnp.int32, (BLOCK, DIM), 0, layout=BY_ROW)
            # Rejected rows may hold anything: they are replaced, not multiplied by zero.
            recorded = jnp.where(row < accepted, load_tile(keys_g.at[slot, :, key_head], BY_ROW), 0.0)
            plgpu.barrier_wait(both_loaded)
            plgpu.commit_smem()
            k, q = _unit(convolved(0, keys)), _unit(convolved(1, queries)) * DIM**-0.5
            for index, (k_part, q_part) in enumerate(zip(split(k), split(q), strict=True)):
                for place, value in ((2 * index, k_part), (2 * index + 1, q_part)):
                    rows_g[slot, key_head, pl.ds(place * BLOCK, BLOCK)] = value
            for index, value in enumerate(split(recorded)):
                rows_g[slot, key_head, pl.ds((2 * PARTS + index) * BLOCK, BLOCK)] = value
            keys_g[slot, :, key_head] = k

        def _gates(t):
            """g and beta of row t, and the decay that was recorded for row t of the block before."""
            alpha = a_g[slot, t, head].astype(jnp.float32) + dt_bias_g[head]
            # log(1 + exp(alpha)) that does not overflow.
            softplus = jnp.maximum(alpha, 0.0) + jnp.log(1.0 + jnp.exp(-jnp.maximum(alpha, -alpha)))
            beta = 1.0 / (1.0 + jnp.exp(-b_g[slot, t, head].astype(jnp.float32)))
            # A padding row must not decay the state or write to it; rejected rows may hold anything.
            valid = t < length_g[slot]
            return (
                jnp.where(valid, -jnp.exp(a_log_g[head]) * softplus, 0.0),
                jnp.where(valid, beta, 0.0),
                jnp.where(t < accepted, decays_g[slot, t, head], 0.0),
            )

        head = key_head * group + part - 1

        @pl.when(part > 0)
        def _():
            channels = pl.ds((2 * key_heads + head) * DIM, DIM)
            load(0, channels, loaded)
            # One row is one number here: the rows of a head lie apart in memory.
            for t in range(BLOCK):
                g, beta, recorded = _gates(t)
                high, low = split_decay(g, BLOCK)
                pairs = {HIGH: (high, high), LOW: (low, low), FACTOR: (-beta, 1.0), DECAY: (recorded, 0.0)}
                for index, (of_key, of_query) in pairs.items():
                    gates_s[index, t] = of_key
                    gates_s[index, BLOCK + t] = jnp.float32(of_query)
                decays_g[slot, t, head] = g
            plgpu.barrier_wait(loaded)
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(gates_s, gates_g.at[slot, head])
            values_g[slot, :, head] = convolved(0, channels)

        plgpu.wait_smem_to_gmem(0)

    return plgpu.kernel(
        gated_delta_inputs,
        out_type=(
            jax.ShapeDtypeStruct((slots, key_heads, 3 * PARTS * BLOCK, DIM), jnp.bfloat16),
            jax.ShapeDtypeStruct((slots, value_heads, GATES, 2 * BLOCK), jnp.float32),
            jax.ShapeDtypeStruct((slots, BLOCK, value_heads, DIM), jnp.float32),
        ),
        grid=(slots, key_heads, 1 + group),
        grid_names=("slot", "key_head", "part"),
        compiler_params=NO_SCRATCH,
        scratch_types={
            "window_s": plgpu.SMEM((2, BLOCK + WIDTH - 1, DIM), jnp.bfloat16),
            "taps_s": plgpu.SMEM((2, WIDTH, DIM), jnp.float32),
            "gates_s": plgpu.SMEM((GATES, 2 * BLOCK), jnp.float32),
            "loaded": plgpu.Barrier(num_arrivals=2),
            "both_loaded": plgpu.Barrier(num_arrivals=4),
        },
    )(mixed, a, b, taps, a_log, dt_bias, accepted, length, conv_ref, keys_ref, decays_ref)


def _unit(x):
    """Rows of unit length; see `l2_norm`."""
    scale = lax.rsqrt(jnp.sum(jnp.square(x), axis=1) + 1e-6)
    return x * lax.broadcast_in_dim(scale, x.shape, [0])
