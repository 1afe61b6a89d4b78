"""Block attention in float32, every position in its place."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


def paged_block_attention_reference(
    q: Float[Array, "B T N D"],
    k_pages: Float[Array, "P page K D"],
    v_pages: Float[Array, "P page K D"],
    page_table: Int[Array, "B pages"],
    start: Int[Array, " B"],
) -> Float[Array, "B T N D"]:
    """Row t reads the positions up to start + t; the result is float32."""
    slots, rows = q.shape[:2]

    def in_order(pages):
        return pages[page_table].reshape(slots, -1, *pages.shape[2:])

    k, v = in_order(k_pages), in_order(v_pages)
    reader = start[:, None, None] + jnp.arange(rows)[None, :, None]
    return _attention(q, k, v, jnp.arange(k.shape[1]) <= reader)


def ring_block_attention_reference(
    q: Float[Array, "B T N D"],
    ring_k: Float[Array, "B R K D"],
    ring_v: Float[Array, "B R K D"],
    block_k: Float[Array, "B T K D"],
    block_v: Float[Array, "B T K D"],
    length: Int[Array, " B"],
    *,
    window: int | None,
    causal: bool,
) -> Float[Array, "B T N D"]:
    """Row t reads its window's positions before `length`, and its block; the result is float32."""
    rows, ring = q.shape[1], ring_k.shape[1]
    context = length[:, None] + jnp.arange(-ring, 0)[None, :]  # [B, R]: the positions that the ring holds, in order

    def in_order(held, block):
        held = jnp.take_along_axis(held, (context % ring)[:, :, None, None], axis=1)
        return jnp.concatenate([held, block], axis=1)

    reader = jnp.arange(rows)[:, None]
    oldest = length[:, None, None] + reader - ((window or ring + rows) - 1)
    in_context = (context[:, None, :] >= 0) & (context[:, None, :] >= oldest)
    in_block = (jnp.arange(rows) <= reader) | (not causal)
    visible = jnp.concatenate([in_context, jnp.broadcast_to(in_block, (len(length), rows, rows))], axis=-1)
    return _attention(q, in_order(ring_k, block_k), in_order(ring_v, block_v), visible)


def _attention(
    q: Float[Array, "B T N D"], k: Float[Array, "B S K D"], v: Float[Array, "B S K D"], visible: Bool[Array, "B T S"]
) -> Float[Array, "B T N D"]:
    groups = q.shape[2] // k.shape[2]
    q, k, v = (x.astype(jnp.float32) for x in (q, k, v))
    k, v = (jnp.repeat(x, groups, axis=2) for x in (k, v))  # one key/value head per query head
    scores = jnp.einsum("btnd,bsnd->bnts", q, k, precision="highest") / jnp.sqrt(q.shape[-1])
    weights = jax.nn.softmax(jnp.where(visible[:, None], scores, -jnp.inf), axis=-1)
    return jnp.einsum("bnts,bsnd->btnd", weights, v, precision="highest")
