"""Chunked prefill of the gated delta rule on Hopper GPUs: two kernels, and a table of gates made by XLA before them.

The first kernel (mosaic_prefill_prepare.py) makes what does not need the state, all chunks at once; the second one
(mosaic_prefill_walk.py) takes the state through the chunks in order. All products have float32 accuracy.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.device import architecture
from pallas_kernels.gated_delta import mosaic_prefill_prepare, mosaic_prefill_walk
from pallas_kernels.gated_delta.mosaic_parts import ROWS
from pallas_kernels.gated_delta.mosaic_prefill_operands import chunk_gates, pad_rows


@dataclasses.dataclass(frozen=True)
class Tiles:
    """How the kernels are cut; any choice gives the same numbers."""

    stages: int  # chunks in shared memory at once, in the second kernel
    warpgroups: int  # value heads worked on at once by a block of the first kernel


def default_tiles(key_dim: int, repeat: int) -> Tiles:
    """As much at once as fits; `repeat` is the number of value heads per key head."""
    return candidate_tiles(key_dim, repeat)[0]


def candidate_tiles(key_dim: int, repeat: int) -> tuple[Tiles, ...]:
    """What is worth measuring on a device, the likely best first."""
    every = [Tiles(stages, warpgroups) for stages in (2, 3, 4) for warpgroups in (3, 2, 1) if repeat % warpgroups == 0]
    return tuple(tiles for tiles in every if _shared_memory_bytes(tiles, key_dim) <= architecture().shared_memory_bytes)


def obstacles(q, k, v, g, beta, state, *, tiles: Tiles | None = None) -> list[str]:
    """Why arguments, of shapes that agree, cannot go to these kernels."""
    key_dim, value_dim, repeat = k.shape[3], v.shape[3], v.shape[2] // k.shape[2]
    found = []
    # 64 x 256 of state in registers, beside its update, would spill.
    if key_dim not in (64, 128):
        found.append(f"the key head dim is {key_dim}, wanted 64 or 128")
    if value_dim % ROWS:
        found.append(f"the value head dim is {value_dim}, wanted a multiple of {ROWS}")
    if not v.shape[1]:
        found.append("there are no rows")
    if not found and tiles is None and not candidate_tiles(key_dim, repeat):
        most = architecture().shared_memory_bytes
        found.append(f"two chunks of key head dim {key_dim} take more than {most} bytes of shared memory")
    if tiles is not None:
        if tiles.stages < 2:
            found.append(f"tiles.stages is {tiles.stages}, wanted 2 or more")
        if tiles.warpgroups < 1 or repeat % tiles.warpgroups:
            found.append(
                f"tiles.warpgroups is {tiles.warpgroups}, wanted a divisor of {repeat} value heads per key head"
            )
        needed = _shared_memory_bytes(tiles, key_dim)
        if needed > (most := architecture().shared_memory_bytes):
            found.append(f"the tiles need {needed} bytes of shared memory, there are {most}")
    return found


def prefill(
    q: Float[Array, "B T Nk K"],
    k: Float[Array, "B T Nk K"],
    v: Float[Array, "B T Nv V"],
    g: Float[Array, "B T Nv"],
    beta: Float[Array, "B T Nv"],
    state: Float[Array, "B Nv V K"],
    *,
    tiles: Tiles | None = None,
) -> tuple[Float[Array, "B T Nv V"], Float[Array, "B Nv V K"]]:
    """Outputs of all rows and the state after the last one, in float32.

    Rows with g = beta = 0 leave the state as it is. The caller has checked `obstacles`.
    """
    return _prefill(tiles or default_tiles(k.shape[3], v.shape[2] // k.shape[2]), q, k, v, g, beta, state)


# A function of its own for the compiler: the layers of a model then trace and lower the kernels once.
@functools.partial(jax.jit, static_argnums=0)
def _prefill(tiles: Tiles, q, k, v, g, beta, state):
    rows = v.shape[1]
    q, k, v, g, beta = (pad_rows(x) for x in (q, k, v, g, beta))
    gates = chunk_gates(g, beta)
    operands = mosaic_prefill_prepare.prepare(q, k, gates, tiles.warpgroups)
    o, state = mosaic_prefill_walk.walk(operands, gates, v, state.astype(jnp.float32), tiles.stages)
    return o[:, :rows], state


def _shared_memory_bytes(tiles: Tiles, key_dim: int) -> int:
    """Of the larger of the two kinds of block."""
    return max(
        mosaic_prefill_prepare.shared_memory_bytes(key_dim, tiles.warpgroups),
        mosaic_prefill_walk.shared_memory_bytes(key_dim, tiles.stages),
    )
