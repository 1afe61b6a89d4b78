"""Keys and values of the target's full-attention layers, in fixed pages that slots share through a page table."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


@functools.partial(jax.tree_util.register_dataclass, data_fields=["k", "v"], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class PagedKV:
    """One layer's pages. Position p of a slot lives in row p % page of page table[slot, p // page]."""

    k: Float[Array, "P page K D"]
    v: Float[Array, "P page K D"]

    @staticmethod
    def zeros(pages: int, page: int, heads: int, dim: int, dtype: jnp.dtype) -> "PagedKV":
        shape = (pages, page, heads, dim)
        return PagedKV(k=jnp.zeros(shape, dtype), v=jnp.zeros(shape, dtype))

    @property
    def rows(self) -> tuple[Float[Array, "R K D"], Float[Array, "R K D"]]:
        """Keys and values, page after page."""
        return self.k.reshape(-1, *self.k.shape[2:]), self.v.reshape(-1, *self.v.shape[2:])

    def with_rows(self, k: Float[Array, "R K D"], v: Float[Array, "R K D"]) -> "PagedKV":
        """The pages with these rows."""
        return PagedKV(k=k.reshape(self.k.shape), v=v.reshape(self.v.shape))

    def places(
        self, table: Int[Array, "B pages"], positions: Int[Array, "B T"], valid: Bool[Array, "B T"]
    ) -> Int[Array, "B T"]:
        """Which of `rows` each position has. One that is invalid or past the slot's last page has none: the number of
        rows, never another one's place.
        """
        pages, page = self.k.shape[:2]
        index = positions // page
        inside = valid & (index < table.shape[1])
        at = jnp.take_along_axis(table, jnp.minimum(index, table.shape[1] - 1), axis=1)
        return jnp.where(inside, at * page + positions % page, pages * page)


def identity_page_table(slots: int, pages_per_slot: int) -> Int[Array, "B pages"]:
    """Each slot owns a contiguous run of pages."""
    return jnp.arange(slots * pages_per_slot, dtype=jnp.int32).reshape(slots, pages_per_slot)
