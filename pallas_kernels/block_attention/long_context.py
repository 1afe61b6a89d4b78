"""Paged attention in plain XLA for contexts whose scores should not exist at once: some pages at a time.

The softmax is carried along as in Milakov and Gimelshein, arXiv 1805.02867: with m the largest score so far, the sum of
weights and the weighted values are kept relative to exp(m) and rescaled when m grows.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def paged_attention_in_steps(
    q: Float[Array, "B T N D"],
    k_pages: Float[Array, "P page K D"],
    v_pages: Float[Array, "P page K D"],
    page_table: Int[Array, "B pages"],
    start: Int[Array, " B"],
    *,
    positions: int,
) -> Float[Array, "B T N D"]:
    """Row t of slot b reads the positions 0 .. start[b] + t, about `positions` of them at a time.

    Pages that no row of any slot sees are not read.
    """
    slots, rows, heads, dim = q.shape
    page, kv_heads = k_pages.shape[1:3]
    pages = max(positions // page, 1)
    steps = -(-page_table.shape[1] // pages)
    # Pages past the table's end repeat its last one; the mask hides them.
    table = jnp.pad(page_table, ((0, 0), (0, steps * pages - page_table.shape[1])), mode="edge")
    grouped = q.reshape(slots, rows, kv_heads, heads // kv_heads, dim)
    reader = (start[:, None] + jnp.arange(rows, dtype=start.dtype))[:, None, None, :, None]  # [B, 1, 1, T, 1]

    def step(index, carry):
        largest, total, output = carry
        here = jax.lax.dynamic_slice_in_dim(table, index * pages, pages, axis=1)
        k, v = (pool[here].reshape(slots, pages * page, kv_heads, dim) for pool in (k_pages, v_pages))
        scores = jnp.einsum("btkgd,bskd->bkgts", grouped, k, preferred_element_type=jnp.float32) * dim**-0.5
        position = index * pages * page + jnp.arange(pages * page, dtype=start.dtype)
        scores = jnp.where(position <= reader, scores, -jnp.inf)
        new_largest = jnp.maximum(largest, jnp.max(scores, axis=-1, keepdims=True))
        weights = jnp.exp(scores - new_largest)
        rescale = jnp.exp(largest - new_largest)
        product = jnp.einsum("bkgts,bskd->bkgtd", weights.astype(v.dtype), v, preferred_element_type=jnp.float32)
        total = rescale * total + jnp.sum(weights, axis=-1, keepdims=True)
        return new_largest, total, rescale * output + product

    shape = (slots, kv_heads, heads // kv_heads, rows)
    first = (
        # Position 0 is visible to every row, so the first step replaces this.
        jnp.full((*shape, 1), -1e30, jnp.float32),
        jnp.zeros((*shape, 1), jnp.float32),
        jnp.zeros((*shape, dim), jnp.float32),
    )
    seen = jnp.minimum(-(-(jnp.max(start) + rows) // (pages * page)), steps)
    _, total, output = jax.lax.fori_loop(0, seen, step, first)
    return jnp.moveaxis(output / total, 3, 1).reshape(q.shape).astype(q.dtype)
