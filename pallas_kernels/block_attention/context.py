"""Where the kernel finds keys and values: how many tiles a slot has, how one is fetched, what a row may see of it.

Both kinds of context number a slot's tiles 0, 1, ... so that splits can share them evenly, however long it is. They
are made inside the kernel, for one slot; whatever depends on the slot alone is read and computed once.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Protocol, Self

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.block_attention.layout import Ref

Copy = Callable[[Ref, Any], None]  # (destination in shared memory, barrier to complete)
FAR = 1 << 30  # more than any position


class Context(Protocol):
    """What the kernel asks of one slot's keys and values."""

    @property
    def count(self) -> jax.Array:
        """Tiles that hold something a row may see; at least one."""
        ...

    def copies(self, head: jax.Array, index: jax.Array) -> tuple[Copy, Copy]:
        """To fetch the keys and the values of one tile."""
        ...

    def visible(self, index: jax.Array, row: jax.Array, column: jax.Array) -> jax.Array:
        """Whether the new row `row` may see row `column` of the tile, elementwise."""
        ...


@dataclasses.dataclass(frozen=True)
class PagedContext:
    """Positions in order: tile i holds the positions from i * tile on, all in one page."""

    k: Ref  # [P, page, K, D]
    v: Ref  # [P, page, K, D]
    pages: Ref  # [pages] int32, of the slot
    start: jax.Array  # position of the first new row
    count: jax.Array
    tile: int

    @classmethod
    def of(cls, k: Ref, v: Ref, page_table: Ref, start: Ref, *, slot: jax.Array, rows: int, tile: int) -> Self:
        first = start[slot]
        capacity = page_table.shape[1] * k.shape[1] // tile
        count = jnp.minimum(pl.cdiv(first + rows, tile), capacity)
        return cls(k=k, v=v, pages=page_table.at[slot], start=first, count=count, tile=tile)

    def copies(self, head: jax.Array, index: jax.Array) -> tuple[Copy, Copy]:
        tiles_per_page = self.k.shape[1] // self.tile
        page = self.pages[lax.div(index, tiles_per_page)]
        rows = pl.ds(lax.rem(index, tiles_per_page) * self.tile, self.tile)

        def copy(pool, destination, barrier):
            plgpu.copy_gmem_to_smem(pool.at[page, rows, head], destination, barrier)

        return functools.partial(copy, self.k), functools.partial(copy, self.v)

    def visible(self, index: jax.Array, row: jax.Array, column: jax.Array) -> jax.Array:
        return index * self.tile + column <= self.start + row


@dataclasses.dataclass(frozen=True)
class RingContext:
    """Tiles of the ring from the one with the oldest visible position on, around its end; then the block itself.

    A tile may hold two runs of positions, where the newest ones have overwritten the oldest. What counts is the
    position of each row, so a tile is fetched once and the order of tiles is free.
    """

    ring_k: Ref  # [R, K, D]
    ring_v: Ref  # [R, K, D]
    block_k: Ref  # [T, K, D]
    block_v: Ref  # [T, K, D]
    length: jax.Array  # positions before the block
    first: jax.Array  # tile of the ring to begin with
    ring_count: jax.Array  # tiles of the ring
    tile: int
    reach: int  # how far a row sees behind itself in the ring
    causal: bool

    @classmethod
    def of(
        cls,
        ring_k: Ref,  # [B, R, K, D]
        ring_v: Ref,
        block_k: Ref,  # [B, T, K, D]
        block_v: Ref,
        length: Ref,  # [B] int32
        *,
        slot: jax.Array,
        tile: int,
        window: int | None,
        causal: bool,
    ) -> Self:
        ring, reach = ring_k.shape[1], FAR if window is None else window - 1
        before = length[slot]
        held = jnp.minimum(before, min(ring, reach))  # row 0 reaches furthest back
        oldest = lax.rem(before - held, ring)
        # From the end of the ring the run goes on at row 0, where a tile begins: the ring's last tile may be short.
        until_end = jnp.minimum(held, ring - oldest)
        first = lax.div(oldest, tile)
        count = pl.cdiv(oldest + until_end, tile) - first + pl.cdiv(held - until_end, tile)
        return cls(
            *(ref.at[slot] for ref in (ring_k, ring_v, block_k, block_v)),
            length=before,
            first=first,
            # A run around the whole ring may begin and end in the same tile.
            ring_count=jnp.where(held > 0, jnp.minimum(count, pl.cdiv(ring, tile)), 0),
            tile=tile,
            reach=reach,
            causal=causal,
        )

    @property
    def count(self) -> jax.Array:
        return self.ring_count + 1

    def copies(self, head: jax.Array, index: jax.Array) -> tuple[Copy, Copy]:
        rows = pl.ds(self._ring_row(index), self.tile)
        # A copy that reaches past the end of the ring or of the block fills the rest with zeros. Only a slice whose
        # start is computed may do so: a constant one is refused.
        block_rows = pl.ds(index * 0, self.tile)

        def copy(ring, block, destination, barrier):
            @pl.when(index < self.ring_count)
            def _():
                plgpu.copy_gmem_to_smem(ring.at[rows, head], destination, barrier)

            @pl.when(index >= self.ring_count)
            def _():
                plgpu.copy_gmem_to_smem(block.at[block_rows, head], destination, barrier)

        return functools.partial(copy, self.ring_k, self.block_k), functools.partial(copy, self.ring_v, self.block_v)

    def visible(self, index: jax.Array, row: jax.Array, column: jax.Array) -> jax.Array:
        ring, rows = self.ring_k.shape[0], self.block_k.shape[0]
        in_ring = index < self.ring_count
        last = self.length - 1
        # One formula for both kinds of tile, so that only scalars depend on the kind. In the ring, `lap` is the
        # position that row 0 has or had in the newest lap; rows past the newest position are one lap behind.
        lap = jnp.where(in_ring, self.length - lax.rem(self.length, ring), self.length)
        newest_held = jnp.where(in_ring, last, FAR)
        size = jnp.where(in_ring, ring, rows)
        reach = jnp.where(in_ring, self.reach, FAR)
        newest = last + rows

        held = jnp.where(in_ring, self._ring_row(index), 0) + column
        position = lap + held
        position = jnp.where(position > newest_held, position - ring, position)
        reader = self.length + row
        allowed = (held < size) & (position >= jnp.maximum(reader - reach, 0))
        return allowed & (position <= (reader if self.causal else newest))

    def _ring_row(self, index: jax.Array) -> jax.Array:
        return lax.rem(self.first + index, pl.cdiv(self.ring_k.shape[0], self.tile)) * self.tile
