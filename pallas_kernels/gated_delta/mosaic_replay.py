"""Deferred fold and block read as one Mosaic GPU kernel: the state is read once and written once, in place.

A thread block serves one slot and key head and walks over some of that head's state tiles: 64 of the V rows of one
value head, all of K. What depends on the key head only is made once and what depends on the value head once per head,
while the next tile is on its way. The matrix units multiply in float32 accuracy (`bf16_parts`).
"""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, BFloat16, Float, Int

from pallas_kernels.device import architecture, num_sms
from pallas_kernels.gated_delta.mosaic_replay_body import (
    KEY_DIM,
    TILE_V,
    body,
    scratch_shapes,
    shared_memory_bytes,
)
from pallas_kernels.gated_delta.mosaic_replay_operands import BLOCK, pack_gates, pack_rows, pad
from pallas_kernels.gated_delta.records import Records
from pallas_kernels.matrix_unit import matrix_unit
from pallas_kernels.tuning import tuned_tiles
from pallas_kernels.warp_rows import NO_SCRATCH


@dataclasses.dataclass(frozen=True)
class Tiles:
    """A thread block walks over `per_block` tiles of the state, with `stages` of them in shared memory."""

    per_block: int
    stages: int


def candidate_tiles(value_heads: int, key_heads: int, value_dim: int) -> list[Tiles]:
    """Every cut of a key head's tiles into equal parts, with two tiles in shared memory where they fit."""
    group = value_heads // key_heads
    total = group * (value_dim // TILE_V)
    fit = 2 if _bytes(group, stages=2) <= architecture().shared_memory_bytes else 1
    return [Tiles(per_block=n, stages=min(n, fit)) for n in range(1, total + 1) if total % n == 0]


def default_tiles(slots: int, value_heads: int, key_heads: int, value_dim: int, sms: int) -> Tiles:
    """The cut that keeps a multiprocessor busy for the shortest time; starting a thread block counts as one tile."""
    total = slots * value_heads * (value_dim // TILE_V)

    def time(tiles: Tiles) -> int:
        return math.ceil(total // tiles.per_block / sms) * (tiles.per_block + 1)

    return min(candidate_tiles(value_heads, key_heads, value_dim), key=time)


def size_key(slots: int, value_heads: int, key_heads: int, value_dim: int) -> str:
    """The name of a size in the files of measured tiles."""
    return f"slots={slots} value_heads={value_heads} key_heads={key_heads} value_dim={value_dim}"


def obstacles(
    state: Float[Array, "B Nv V K"], records: Records, q: Float[Array, "B T Nk K"], *, tiles: Tiles | None = None
) -> list[str]:
    """Why the kernel cannot serve these shapes."""
    value_heads, value_dim, key_dim = state.shape[1:]
    rows, key_heads = q.shape[1:3]
    found = []
    if key_dim != KEY_DIM:
        found.append(f"the key head dim is {key_dim}, wanted {KEY_DIM}")
    if value_dim % TILE_V:
        found.append(f"the value head dim is {value_dim}, wanted a multiple of {TILE_V}")
    for what, count in (("block", rows), ("records", records.g.shape[1])):
        if not 1 <= count <= BLOCK:
            found.append(f"rows of the {what} are {count}, wanted 1 to {BLOCK}")
    group = value_heads // key_heads
    total = group * (value_dim // TILE_V)
    if tiles and (tiles.per_block < 1 or total % tiles.per_block or tiles.stages not in (1, 2)):
        found.append(f"{tiles}, wanted per_block to divide {total} and 1 or 2 stages")
    need = _bytes(group, stages=tiles.stages if tiles else 1)
    if need > (most := architecture().shared_memory_bytes):
        found.append(f"{group} value heads per key head take {need} bytes of {most} shared memory")
    return found


def _bytes(group: int, stages: int) -> int:
    return shared_memory_bytes(matrix_unit(), group, stages)


def replay(
    state: Float[Array, "B Nv V K"],
    records: Records,
    accepted: Int[Array, " B"],
    q: Float[Array, "B T Nk K"],
    k: Float[Array, "B T Nk K"],
    v: Float[Array, "B T Nv V"],
    g: Float[Array, "B T Nv"],
    beta: Float[Array, "B T Nv"],
    *,
    tiles: Tiles | None = None,
) -> tuple[Float[Array, "B T Nv V"], Float[Array, "B Nv V K"], Records]:
    """`gated_delta_replay` of float32 arrays that have no `obstacles`."""
    return _replay(tiles or chosen_tiles(state, k.shape[2]), state, records, accepted, q, k, v, g, beta)


def chosen_tiles(state: Float[Array, "B Nv V K"], key_heads: int) -> Tiles:
    """The measured tiles, or the heuristic's."""
    slots, value_heads, value_dim, _ = state.shape
    sizes = slots, value_heads, key_heads, value_dim
    return tuned_tiles("gated_delta_replay", size_key(*sizes), default_tiles(*sizes, sms=num_sms()))


# A function of its own for the compiler: the layers of a model then trace and lower the kernel once.
@functools.partial(jax.jit, static_argnums=0)
def _replay(tiles: Tiles, state, records: Records, accepted, q, k, v, g, beta):
    rows = q.shape[1]
    packed = pack_rows(k, q, pad(records.k, 1), accepted), pack_gates(g, beta, pad(records.g, 1), accepted)
    # The kernel writes into these buffers: if the caller donates them, they are changed where they lie.
    state_ref, deltas_ref = jax.new_ref(state), jax.new_ref(pad(records.d, 3))
    o = launch(tiles, state_ref, deltas_ref, accepted, *packed, pad(v, 1))
    d = jax.freeze(deltas_ref)
    return o[:, :rows], jax.freeze(state_ref), Records(k=k, d=d[..., :rows], g=g)


def launch(
    tiles: Tiles,
    state_ref,  # float32 [B, Nv, V, K], changed in place
    deltas_ref,  # float32 [B, Nv, V, 16], the records' deltas, changed in place
    accepted: Int[Array, " B"],
    rows: BFloat16[Array, "B Nk 144 K"],
    gates: Float[Array, "B Nv 4 32"],
    values: Float[Array, "B 16 Nv V"],
) -> Float[Array, "B 16 Nv V"]:
    """The kernel over operands as `mosaic_replay_operands` describes them."""
    slots, key_heads = rows.shape[:2]
    value_heads, value_dim = values.shape[2:]
    group = value_heads // key_heads
    unit = matrix_unit()

    def gated_delta_replay(*refs, **scratch):  # the name that profilers show
        body(unit, group, tiles.per_block, tiles.stages, *refs, **scratch)

    return plgpu.kernel(
        gated_delta_replay,
        out_type=jax.ShapeDtypeStruct(values.shape, jnp.float32),
        grid=(slots, key_heads, group * (value_dim // TILE_V) // tiles.per_block),
        grid_names=("slot", "key_head", "part"),
        compiler_params=NO_SCRATCH,
        scratch_types=scratch_shapes(unit, group, tiles.stages),
    )(state_ref, accepted, rows, gates, deltas_ref, values)
