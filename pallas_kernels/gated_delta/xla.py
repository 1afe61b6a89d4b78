"""Plain XLA forms: matrix products over whole blocks of rows, float32 throughout.

With G the cumulative sum of g inside a block and S the state before it, the deltas d of all rows solve

    (I + A) d = beta (v - exp(G) S k),    A[i, j] = beta_i exp(G_i - G_j) (k_i . k_j) for j < i

and o_i = exp(G_i) S q_i + sum_{j <= i} exp(G_i - G_j) (q_i . k_j) d_j (Yang et al., arXiv 2412.06464).
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pallas_kernels.gated_delta.log_decay import split_decay
from pallas_kernels.gated_delta.records import Records

_einsum = functools.partial(jnp.einsum, precision="highest")


def prefill(
    q: Float[Array, "B T Nk K"],
    k: Float[Array, "B T Nk K"],
    v: Float[Array, "B T Nv V"],
    g: Float[Array, "B T Nv"],
    beta: Float[Array, "B T Nv"],
    state: Float[Array, "B Nv V K"],
    *,
    chunk: int = 32,
) -> tuple[Float[Array, "B T Nv V"], Float[Array, "B Nv V K"]]:
    """Outputs of all rows and the state after the last one. Rows with g = beta = 0 leave the state as it is."""
    rows = v.shape[1]
    chunk = min(chunk, rows)
    pad = -rows % chunk
    repeat = v.shape[2] // k.shape[2]

    def split(x, repeat=1):  # [B, T, N, ...] -> [chunks, B, N, C, ...]
        x = jnp.pad(x.astype(jnp.float32), [(0, 0), (0, pad)] + [(0, 0)] * (x.ndim - 2))
        x = x.reshape(x.shape[0], -1, chunk, *x.shape[2:])
        x = jnp.moveaxis(jnp.moveaxis(x, 1, 0), 3, 2)
        return jnp.repeat(x, repeat, axis=2)

    q, k = split(q, repeat), split(k, repeat)
    v, g, beta = split(v), split(g), split(beta)
    into, onward, mix, solve = _block_matrices(q, k, g, beta)

    def step(state, block):
        q, k, v, beta, into, onward, mix, solve = block
        deltas, o = _read(q, k, v, beta, into, mix, solve, state)
        update = _einsum("bncv,bnck->bnvk", deltas, k * onward[..., None])
        return into[..., -1:, None] * state + update, o

    state, o = jax.lax.scan(step, state.astype(jnp.float32), (q, k, v, beta, into, onward, mix, solve))
    o = jnp.moveaxis(jnp.moveaxis(o, 2, 3), 0, 1)  # [B, chunks, C, N, V]
    return o.reshape(o.shape[0], -1, *o.shape[3:])[:, :rows], state


def fold_records(
    state: Float[Array, "B Nv V K"], records: Records, accepted: Int[Array, " B"]
) -> Float[Array, "B Nv V K"]:
    """The state after the first `accepted` recorded rows; with 0 it is returned bit for bit."""
    keep = jnp.arange(records.g.shape[1])[None, :] < accepted[:, None]  # [B, R]
    # Select instead of multiplying by zero: rows that were rejected may hold anything.
    g = jnp.where(keep[..., None], records.g, 0.0)
    d = jnp.where(keep[:, None, None, :], records.d, 0.0)
    k = jnp.where(keep[..., None, None], records.k, 0.0)
    # Summed from the end: a difference of two sums would lose what follows a strong decay.
    onward = jnp.exp(jax.lax.cumsum(jnp.pad(g[:, 1:], [(0, 0), (0, 1), (0, 0)]), axis=1, reverse=True))
    repeat = d.shape[1] // k.shape[2]
    update = _einsum("bnvr,brnk->bnvk", d, jnp.repeat(k, repeat, axis=2) * onward[..., None])
    folded = jnp.exp(jnp.sum(g, axis=1))[..., None, None] * state + update
    return jnp.where((accepted > 0)[:, None, None, None], folded, state)


def replay(
    state: Float[Array, "B Nv V K"],
    records: Records,
    accepted: Int[Array, " B"],
    q: Float[Array, "B T Nk K"],
    k: Float[Array, "B T Nk K"],
    v: Float[Array, "B T Nv V"],
    g: Float[Array, "B T Nv"],
    beta: Float[Array, "B T Nv"],
) -> tuple[Float[Array, "B T Nv V"], Float[Array, "B Nv V K"], Records]:
    """See `gated_delta_replay`."""
    state = fold_records(state, records, accepted)
    repeat = v.shape[2] // k.shape[2]
    q32, k32, v32, g32, beta32 = (x.astype(jnp.float32) for x in (q, k, v, g, beta))
    by_head = [jnp.moveaxis(x, 1, 2) for x in (q32, k32, v32, g32, beta32)]
    q_h, k_h = (jnp.repeat(x, repeat, axis=1) for x in by_head[:2])
    v_h, g_h, beta_h = by_head[2:]
    into, _, mix, solve = _block_matrices(q_h, k_h, g_h, beta_h)
    deltas, o = _read(q_h, k_h, v_h, beta_h, into, mix, solve, state)
    return jnp.moveaxis(o, 1, 2), state, Records(k=k32, d=jnp.swapaxes(deltas, -1, -2), g=g32)


def _block_matrices(q, k, g, beta):
    """Everything that does not need the state.

    The decays from before the block into each row and from each row to the last one [..., C], then (q k^T) decay and
    (I + A)^-1 [..., C, C].
    """
    size = g.shape[-1]
    high, low = (jnp.cumsum(x, axis=-1) for x in split_decay(g, size))
    between = sum(x[..., :, None] - x[..., None, :] for x in (high, low))
    # Masked before exp: above the diagonal the difference is positive and could overflow.
    decay = jnp.exp(jnp.where(jnp.tril(jnp.ones((size, size), bool)), between, -jnp.inf))
    strict = jnp.tril(jnp.ones((size, size), bool), -1)
    a = jnp.where(strict, beta[..., :, None] * _einsum("...ik,...jk->...ij", k, k) * decay, 0.0)
    mix = _einsum("...ik,...jk->...ij", q, k) * decay
    return jnp.exp(high + low), decay[..., -1, :], mix, _unit_lower_inverse(a)


def _read(q, k, v, beta, into, mix, solve, state):
    into = into[..., None]
    residual = beta[..., None] * (v - into * _einsum("bnck,bnvk->bncv", k, state))
    deltas = _einsum("bnij,bnjv->bniv", solve, residual)
    return deltas, into * _einsum("bnck,bnvk->bncv", q, state) + _einsum("bnij,bnjv->bniv", mix, deltas)


def _unit_lower_inverse(a):
    """(I + a)^-1 for strictly lower a [..., C, C], by matrix products.

    Blocks of 16 use (I + N)(I + N^2)(I + N^4)(I + N^8) with N = -a, N^16 = 0; larger ones are joined pairwise,
    since the powers of a large block would lose all accuracy.
    """
    size = a.shape[-1]
    if size <= 16:
        eye = jnp.eye(size, dtype=a.dtype)
        power, inverse, span = -a, eye - a, 2
        while span < size:
            power = _einsum("...ij,...jk->...ik", power, power)
            inverse = inverse + _einsum("...ij,...jk->...ik", inverse, power)
            span *= 2
        return inverse
    half = 16
    while half * 2 < size:
        half *= 2
    first = _unit_lower_inverse(a[..., :half, :half])
    second = _unit_lower_inverse(a[..., half:, half:])
    corner = _einsum("...ij,...jk,...kl->...il", second, a[..., half:, :half], first)
    top = jnp.concatenate([first, jnp.zeros_like(a[..., :half, half:])], axis=-1)
    return jnp.concatenate([top, jnp.concatenate([-corner, second], axis=-1)], axis=-2)
