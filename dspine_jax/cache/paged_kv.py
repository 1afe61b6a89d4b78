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

    def write(
        self,
        table: Int[Array, "B pages"],
        positions: Int[Array, "B T"],
        valid: Bool[Array, "B T"],
        k: Float[Array, "B T K D"],
        v: Float[Array, "B T K D"],
    ) -> "PagedKV":
        """Stores the valid rows. A row that is invalid or past the slot's last page is dropped, never clamped."""
        pages, page = self.k.shape[:2]
        index = positions // page
        inside = valid & (index < table.shape[1])
        at = jnp.take_along_axis(table, jnp.minimum(index, table.shape[1] - 1), axis=1)
        at = jnp.where(inside, at, pages)
        row = positions % page
        return PagedKV(
            k=self.k.at[at, row].set(k.astype(self.k.dtype), mode="drop"),
            v=self.v.at[at, row].set(v.astype(self.v.dtype), mode="drop"),
        )


def identity_page_table(slots: int, pages_per_slot: int) -> Int[Array, "B pages"]:
    """Each slot owns a contiguous run of pages."""
    return jnp.arange(slots * pages_per_slot, dtype=jnp.int32).reshape(slots, pages_per_slot)
