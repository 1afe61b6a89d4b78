"""The recurrence itself, one token at a time, in float32: slow and obvious."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pallas_kernels.gated_delta.records import Records


def gated_delta_recurrent(
    q: Float[Array, "B T Nk K"],
    k: Float[Array, "B T Nk K"],
    v: Float[Array, "B T Nv V"],
    g: Float[Array, "B T Nv"],
    beta: Float[Array, "B T Nv"],
    state: Float[Array, "B Nv V K"],
) -> tuple[Float[Array, "B T Nv V"], Float[Array, "B Nv V K"]]:
    """Output and final state of the gated delta rule, all in float32.

    q and k are already L2-normalised (and q scaled); key head n serves value heads n*Nv/Nk and following.
    """
    o, state, _ = _tokens(q, k, v, g, beta, state)
    return o, state


def replay_recurrent(
    state: Float[Array, "B Nv V K"],
    records: Records,
    accepted: Int[Array, " B"],
    q: Float[Array, "B T Nk K"],
    k: Float[Array, "B T Nk K"],
    v: Float[Array, "B T Nv V"],
    g: Float[Array, "B T Nv"],
    beta: Float[Array, "B T Nv"],
) -> tuple[Float[Array, "B T Nv V"], Float[Array, "B Nv V K"], Records]:
    """See `gated_delta_replay`: recorded rows are added one by one, then the new rows are read one by one."""
    repeat = v.shape[2] // k.shape[2]

    def add(row, state):
        key = jnp.repeat(records.k[:, row], repeat, axis=1)
        after = state * jnp.exp(records.g[:, row])[..., None, None] + records.d[..., row, None] * key[..., None, :]
        return jnp.where((row < accepted)[:, None, None, None], after, state)

    state = jax.lax.fori_loop(0, records.g.shape[1], add, state)
    o, _, d = _tokens(q, k, v, g, beta, state)
    return o, state, Records(k=k.astype(jnp.float32), d=jnp.moveaxis(d, 1, -1), g=g.astype(jnp.float32))


def _tokens(q, k, v, g, beta, state):
    """Outputs [B, T, Nv, V], the state after the last row, and the rows' deltas [B, T, Nv, V]."""
    repeat = v.shape[2] // k.shape[2]
    q, k = (jnp.repeat(x.astype(jnp.float32), repeat, axis=2) for x in (q, k))

    def token(state, row):
        q, k, v, g, beta = row
        state = state * jnp.exp(g)[..., None, None]
        delta = beta[..., None] * (v - jnp.einsum("bnvk,bnk->bnv", state, k, precision="highest"))
        state = state + delta[..., :, None] * k[..., None, :]
        return state, (jnp.einsum("bnvk,bnk->bnv", state, q, precision="highest"), delta)

    rows = tuple(jnp.moveaxis(x.astype(jnp.float32), 1, 0) for x in (q, k, v, g, beta))
    state, (o, d) = jax.lax.scan(token, state.astype(jnp.float32), rows)
    return jnp.moveaxis(o, 0, 1), state, jnp.moveaxis(d, 0, 1)
