"""A whole block of a gated delta layer, from its projections to its outputs and caches."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pallas_kernels.gated_delta import mosaic_replay
from pallas_kernels.gated_delta.api import gated_delta_replay
from pallas_kernels.gated_delta.block_inputs import block_inputs
from pallas_kernels.gated_delta.mosaic_inputs import DIM, WIDTH, replay_inputs
from pallas_kernels.gated_delta.mosaic_replay_operands import BLOCK, pad
from pallas_kernels.gated_delta.records import Records, pad_records, pad_rows, take_rows
from pallas_kernels.implementation import Implementation, resolve

Result = tuple[
    Float[Array, "B T Nv V"], Float[Array, "B Nv V K"], Records, Float[Array, "B R+w-1 channels"]
]  # outputs, state, records, convolution inputs


def gated_delta_block(
    mixed: Float[Array, "B T channels"],
    a: Float[Array, "B T Nv"],
    b: Float[Array, "B T Nv"],
    taps: Float[Array, "channels w"],
    a_log: Float[Array, " Nv"],
    dt_bias: Float[Array, " Nv"],
    state: Float[Array, "B Nv V K"],
    records: Records,
    conv: Float[Array, "B R+w-1 channels"],
    accepted: Int[Array, " B"],
    length: Int[Array, " B"],
    *,
    key_heads: int,
    implementation: Implementation | None = None,
    tiles: mosaic_replay.Tiles | None = None,
) -> Result:
    """Folds `accepted` rows of the block before, reads T new rows, of which `length` are real.

    `mixed` are the q|k|v channels, `a` and `b` what the gates are made of. `conv` holds the w - 1 inputs before the
    recorded block and then the block's. Returns the float32 outputs, the folded state, and records and convolution
    inputs of the new block, R rows wide; what lies past row T in them means nothing. The Mosaic GPU kernels change all
    of these in place where they are donated; where they cannot run, the replay may still choose its own. `tiles`
    belongs to the replay. Raises ValueError as `gated_delta_replay` does.
    """
    slots, rows, _ = mixed.shape
    key_dim, width = state.shape[3], taps.shape[1]
    queries = jax.eval_shape(lambda: jnp.zeros((slots, rows, key_heads, key_dim)))
    found = obstacles(mixed, a, b, taps, state, records) + mosaic_replay.obstacles(state, records, queries, tiles=tiles)
    choice = resolve("gated_delta_block", implementation, found)
    arrays = mixed, a, b, taps, a_log, dt_bias, state, records, conv, accepted, length
    if choice == "mosaic_gpu":
        return _block(*arrays, key_heads=key_heads, tiles=tiles or mosaic_replay.chosen_tiles(state, key_heads))
    inputs = jnp.concatenate([take_rows(conv, accepted, width - 1), mixed], axis=1)
    valid = jnp.arange(rows)[None, :] < length[:, None]
    block = block_inputs(inputs, a, b, taps, a_log, dt_bias, valid, key_heads=key_heads, key_dim=key_dim)
    recorded = records.g.shape[1]
    o, state, records = gated_delta_replay(state, records, accepted, *block, implementation=implementation, tiles=tiles)
    return o, state, pad_records(records, recorded), pad_rows(inputs, recorded + width - 1)


def obstacles(mixed: Array, a: Array, b: Array, taps: Array, state: Array, records: Records) -> list[str]:
    """Why the kernel that prepares a block cannot serve these arguments, beside what the replay says."""
    found = []
    for name, array in {"mixed": mixed, "a": a, "b": b, "taps": taps}.items():
        if array.dtype != jnp.bfloat16:
            found.append(f"{name} is {array.dtype}, wanted bfloat16")
    if taps.shape[1] != WIDTH:
        found.append(f"the convolution has {taps.shape[1]} taps, wanted {WIDTH}")
    if records.g.shape[1] != BLOCK:
        found.append(f"the records have {records.g.shape[1]} rows, wanted {BLOCK}")
    if state.shape[2] != DIM:
        found.append(f"the value head dim is {state.shape[2]}, wanted {DIM}")
    return found


# A function of its own for the compiler: the layers of a model then trace and lower the kernels once.
@functools.partial(jax.jit, static_argnames=("key_heads", "tiles"))
def _block(mixed, a, b, taps, a_log, dt_bias, state, records, conv, accepted, length, *, key_heads, tiles):
    rows = mixed.shape[1]
    mixed, a, b = (pad(x, 1) for x in (mixed, a, b))
    # The kernels write into these buffers: if the caller donates them, they are changed where they lie.
    caches = state, records.d, conv, records.k, records.g
    state_ref, deltas_ref, conv_ref, keys_ref, decays_ref = (jax.new_ref(cache) for cache in caches)
    packed = replay_inputs(
        mixed, a, b, taps, a_log, dt_bias, accepted, length, conv_ref, keys_ref, decays_ref, key_heads=key_heads
    )
    o = mosaic_replay.launch(tiles, state_ref, deltas_ref, accepted, *packed)
    records = Records(k=jax.freeze(keys_ref), d=jax.freeze(deltas_ref), g=jax.freeze(decays_ref))
    return o[:, :rows], jax.freeze(state_ref), records, jax.freeze(conv_ref)
