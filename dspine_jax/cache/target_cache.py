"""The target's whole cache: one entry per layer, one page table, one count of accepted rows."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from dspine_jax.cache.gdn_state import GDNState
from dspine_jax.cache.paged_kv import PagedKV, identity_page_table
from dspine_jax.cache.slots import clear_slots
from dspine_jax.config import TargetConfig


@functools.partial(jax.tree_util.register_dataclass, data_fields=["layers", "page_table", "pending"], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class TargetCache:
    """Slots b = 0 .. B-1. A new cache is all zeros; a slot is reused only after `reset_slots`."""

    layers: tuple[PagedKV | GDNState, ...]
    page_table: Int[Array, "B pages"]
    pending: Int[Array, " B"]  # accepted rows of the last block, not yet folded into the GDN states

    @staticmethod
    def zeros(
        config: TargetConfig,
        slots: int,
        capacity: int,
        *,
        block: int,
        page: int = 64,
        pool: int | None = None,
        dtype: jnp.dtype,
    ) -> "TargetCache":
        """Room for `capacity` positions per slot and records of `block` rows.

        Each slot owns its pages, or, with `pool` pages in all, none: every entry of the table is page 0.
        """
        pages = -(-capacity // page)
        gdn = functools.partial(
            GDNState.zeros,
            slots,
            block,
            key_heads=config.linear_num_key_heads,
            value_heads=config.linear_num_value_heads,
            key_dim=config.linear_key_head_dim,
            value_dim=config.linear_value_head_dim,
            kernel=config.linear_conv_kernel_dim,
            dtype=dtype,
        )
        layers = tuple(
            PagedKV.zeros(pool or slots * pages, page, config.num_key_value_heads, config.head_dim, dtype)
            if kind == "full_attention"
            else gdn()
            for kind in config.layer_types
        )
        table = identity_page_table(slots, pages) if pool is None else jnp.zeros((slots, pages), jnp.int32)
        return TargetCache(layers=layers, page_table=table, pending=jnp.zeros(slots, jnp.int32))

    def commit(self, accepted: Int[Array, " B"]) -> "TargetCache":
        """Accepts the first `accepted` rows of the block that was read last (0 drops the block)."""
        return dataclasses.replace(self, pending=accepted)

    def reset_slots(self, fresh: jax.Array) -> "TargetCache":
        """Zeroes the recurrent state of the slots marked in `fresh` [B]; finite pages need no clearing."""

        def clear(x):
            return clear_slots(x, fresh)

        layers = tuple(jax.tree.map(clear, layer) if isinstance(layer, GDNState) else layer for layer in self.layers)
        return dataclasses.replace(self, layers=layers, pending=clear(self.pending))

    def clear_pages(self, pages: Int[Array, " n"]) -> "TargetCache":
        """Zeroes these pages in every layer."""

        def clear(x):
            return x.at[pages].set(jnp.zeros((), x.dtype))

        layers = tuple(jax.tree.map(clear, layer) if isinstance(layer, PagedKV) else layer for layer in self.layers)
        return dataclasses.replace(self, layers=layers)
