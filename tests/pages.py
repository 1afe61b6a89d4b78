"""What a cache holds, position by position, and rows put there."""

import jax
from jaxtyping import Array, Float, Int

from dspine_jax.cache.draft_ring import DraftRing
from dspine_jax.cache.paged_kv import PagedKV


def read_pages(kv: PagedKV, table: Int[Array, "B pages"]) -> tuple[Float[Array, "B S K D"], Float[Array, "B S K D"]]:
    """Keys and values of all positions of each slot in order, S = pages of a slot * page."""

    def gather(pages: jax.Array) -> jax.Array:
        return pages[table].reshape(table.shape[0], -1, *pages.shape[2:])

    return gather(kv.k), gather(kv.v)


def store[Cache: (PagedKV, DraftRing)](
    cache: Cache, places: Int[Array, "B T"], k: Float[Array, "B T K D"], v: Float[Array, "B T K D"]
) -> Cache:
    """The cache with keys and values at these places."""
    k_rows, v_rows = (rows.at[places].set(new, mode="drop") for rows, new in zip(cache.rows, (k, v), strict=True))
    return cache.with_rows(k_rows, v_rows)
