"""Block attention in plain XLA: all positions side by side and a mask."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


def paged_block_attention_xla(
    q: Float[Array, "B T N D"],
    k_pages: Float[Array, "P page K D"],
    v_pages: Float[Array, "P page K D"],
    page_table: Int[Array, "B pages"],
    start: Int[Array, " B"],
) -> Float[Array, "B T N D"]:
    """Gathers every page of every slot, then masks what lies after the row."""

    def gather(pages):
        return pages[page_table].reshape(page_table.shape[0], -1, *pages.shape[2:])

    k, v = gather(k_pages), gather(v_pages)
    positions = start[:, None] + jnp.arange(q.shape[1], dtype=jnp.int32)[None, :]
    visible = jnp.arange(k.shape[1])[None, None, :] <= positions[:, :, None]
    return grouped_attention(q, k, v, visible)


def ring_block_attention_xla(
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
    """Joins the whole ring and the block, then masks by the position that each row holds."""
    offset = jnp.arange(q.shape[1], dtype=jnp.int32)
    reader = length[:, None, None] + offset[None, :, None]  # [B, T, 1]
    held = held_positions(length, ring_k.shape[1])[:, None, :]  # [B, 1, R]
    oldest = jnp.zeros_like(reader) if window is None else jnp.maximum(reader - (window - 1), 0)
    in_context = (held >= oldest) & (held < length[:, None, None])
    in_block = offset[None, :] <= offset[:, None] if causal else jnp.ones((offset.size, offset.size), bool)
    in_block = jnp.broadcast_to(in_block, (*q.shape[:2], offset.size))
    return grouped_attention(
        q,
        jnp.concatenate([ring_k, block_k], axis=1),
        jnp.concatenate([ring_v, block_v], axis=1),
        jnp.concatenate([in_context, in_block], axis=-1),
    )


def held_positions(length: Int[Array, " B"], ring: int) -> Int[Array, "B R"]:
    """Which of the positions 0 .. length - 1 each row of a ring holds: the last `ring` of them, others negative."""
    last = length[:, None] - 1
    return last - (last - jnp.arange(ring)[None, :]) % ring


def grouped_attention(
    q: Float[Array, "B T N D"],
    k: Float[Array, "B S K D"],
    v: Float[Array, "B S K D"],
    visible: Bool[Array, "B T S"],
) -> Float[Array, "B T N D"]:
    """Softmax attention with grouped heads (query head n reads key head n*K/N); softmax in float32.

    `visible` says which keys a row may read; every row must see at least one.
    """
    batch, rows, heads, dim = q.shape
    groups = heads // k.shape[2]
    q = q.reshape(batch, rows, k.shape[2], groups, dim)
    scores = jnp.einsum("btkgd,bskd->bkgts", q, k, preferred_element_type=jnp.float32) * dim**-0.5
    scores = jnp.where(visible[:, None, None], scores, -jnp.inf)
    weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
    return jnp.einsum("bkgts,bskd->btkgd", weights, v).reshape(batch, rows, heads, dim)
