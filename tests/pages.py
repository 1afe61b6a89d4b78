"""What a paged cache holds, position by position."""

import jax
from jaxtyping import Array, Float, Int

from dspine_jax.cache.paged_kv import PagedKV


def read_pages(kv: PagedKV, table: Int[Array, "B pages"]) -> tuple[Float[Array, "B S K D"], Float[Array, "B S K D"]]:
    """Keys and values of all positions of each slot in order, S = pages of a slot * page."""

    def gather(pages: jax.Array) -> jax.Array:
        return pages[table].reshape(table.shape[0], -1, *pages.shape[2:])

    return gather(kv.k), gather(kv.v)
