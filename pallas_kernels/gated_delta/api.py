"""The public functions: argument checks and the choice of an implementation."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pallas_kernels.gated_delta import mosaic_prefill, mosaic_replay, reference, xla
from pallas_kernels.gated_delta.records import Records
from pallas_kernels.implementation import Implementation, resolve


def gated_delta_prefill(
    q: Float[Array, "B T Nk K"],
    k: Float[Array, "B T Nk K"],
    v: Float[Array, "B T Nv V"],
    g: Float[Array, "B T Nv"],
    beta: Float[Array, "B T Nv"],
    state: Float[Array, "B Nv V K"],
    *,
    chunk: int = 32,
    implementation: Implementation | None = None,
    tiles: mosaic_prefill.Tiles | None = None,
) -> tuple[Float[Array, "B T Nv V"], Float[Array, "B Nv V K"]]:
    """Outputs of all rows and the state after the last one, in float32.

    Rows with g = beta = 0 leave the state as it is. Key head n serves the value heads n * Nv/Nk and following.
    `chunk` is the number of rows that the XLA form takes at a time, `tiles` belongs to the Mosaic GPU kernel.
    Raises ValueError on shapes that do not fit together and for a named implementation that cannot run.
    """
    _check("gated_delta_prefill", state, q, k, v, g, beta)
    obstacles = mosaic_prefill.obstacles(q, k, v, g, beta, state, tiles=tiles)
    match resolve("gated_delta_prefill", implementation, obstacles):
        case "mosaic_gpu":
            return mosaic_prefill.prefill(q, k, v, g, beta, state, tiles=tiles)
        case "xla":
            return xla.prefill(q, k, v, g, beta, state, chunk=chunk)
        case "reference":
            return reference.gated_delta_recurrent(q, k, v, g, beta, state)


def gated_delta_replay(
    state: Float[Array, "B Nv V K"],
    records: Records,
    accepted: Int[Array, " B"],
    q: Float[Array, "B T Nk K"],
    k: Float[Array, "B T Nk K"],
    v: Float[Array, "B T Nv V"],
    g: Float[Array, "B T Nv"],
    beta: Float[Array, "B T Nv"],
    *,
    implementation: Implementation | None = None,
    tiles: mosaic_replay.Tiles | None = None,
) -> tuple[Float[Array, "B T Nv V"], Float[Array, "B Nv V K"], Records]:
    """Folds `accepted` rows of `records`, then reads a block of T rows from the folded state, in float32.

    Returns the outputs, the folded state (which does not contain the new rows) and the new rows' records. A slot that
    accepted nothing keeps its state bit for bit. Records past the accepted ones may hold anything, NaN included.
    The Mosaic GPU kernel changes the state in place where its buffer is donated; `tiles` belongs to it.
    Raises ValueError on shapes that do not fit together and for a named implementation that cannot run.
    """
    op = "gated_delta_replay"
    _check(op, state, q, k, v, g, beta)
    slots, value_heads, value_dim, key_dim = state.shape
    recorded = records.g.shape[1]
    _check_shapes(
        op,
        {
            "records.k": (records.k, (slots, recorded, k.shape[2], key_dim)),
            "records.d": (records.d, (slots, value_heads, value_dim, recorded)),
            "records.g": (records.g, (slots, recorded, value_heads)),
            "accepted": (accepted, (slots,)),
        },
    )
    choice = resolve(op, implementation, mosaic_replay.obstacles(state, records, q, tiles=tiles))
    q, k, v, g, beta = (x.astype(jnp.float32) for x in (q, k, v, g, beta))
    match choice:
        case "mosaic_gpu":
            return mosaic_replay.replay(state, records, accepted, q, k, v, g, beta, tiles=tiles)
        case "xla":
            return xla.replay(state, records, accepted, q, k, v, g, beta)
        case "reference":
            return reference.replay_recurrent(state, records, accepted, q, k, v, g, beta)


def _check(op: str, state, q, k, v, g, beta) -> None:
    if state.ndim != 4 or k.ndim != 4:
        raise ValueError(f"{op}: state is {state.shape} and k {k.shape}, wanted [B, Nv, V, K] and [B, T, Nk, K]")
    if state.dtype != jnp.float32:
        raise ValueError(f"{op}: the state is {state.dtype}, wanted float32: narrower states drift")
    slots, value_heads, value_dim, key_dim = state.shape
    rows, key_heads = k.shape[1:3]
    if not key_heads or value_heads % key_heads:
        raise ValueError(f"{op}: {value_heads} value heads and {key_heads} key heads, wanted a multiple of the latter")
    _check_shapes(
        op,
        {
            "q": (q, (slots, rows, key_heads, key_dim)),
            "k": (k, (slots, rows, key_heads, key_dim)),
            "v": (v, (slots, rows, value_heads, value_dim)),
            "g": (g, (slots, rows, value_heads)),
            "beta": (beta, (slots, rows, value_heads)),
        },
    )


def _check_shapes(op: str, wanted: Mapping[str, tuple[jax.Array, tuple[int, ...]]]) -> None:
    """Raises one error that lists every argument of another shape."""
    faults = [f"{name} is {x.shape}, wanted {shape}" for name, (x, shape) in wanted.items() if x.shape != shape]
    if faults:
        raise ValueError(f"{op}: shapes do not fit the state or k: {'; '.join(faults)}")
