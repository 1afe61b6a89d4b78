"""The recurrence itself, one token at a time, in float32: slow and obvious."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


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
    repeat = v.shape[2] // k.shape[2]
    q, k = (jnp.repeat(x.astype(jnp.float32), repeat, axis=2) for x in (q, k))

    def token(state, row):
        q, k, v, g, beta = row
        state = state * jnp.exp(g)[..., None, None]
        delta = beta[..., None] * (v - jnp.einsum("bnvk,bnk->bnv", state, k, precision="highest"))
        state = state + delta[..., :, None] * k[..., None, :]
        return state, jnp.einsum("bnvk,bnk->bnv", state, q, precision="highest")

    rows = tuple(jnp.moveaxis(x.astype(jnp.float32), 1, 0) for x in (q, k, v, g, beta))
    state, o = jax.lax.scan(token, state.astype(jnp.float32), rows)
    return jnp.moveaxis(o, 0, 1), state
