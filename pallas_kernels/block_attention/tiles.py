"""Sizes of the kernel: what fits, what to take by default, what to try on a device."""

import dataclasses
from typing import Literal

from pallas_kernels.shared_memory import SHARED_MEMORY_BYTES

WARPGROUP_ROWS = 64  # rows of one wgmma: query rows of one consumer warpgroup
MAX_CONSUMERS = 2  # a third would leave too few registers for a float32 output of 64 x 256
MAX_ROWS = 16  # new rows per slot
KEYS = 64  # one swizzled row of weights: the least that a tile of keys may have
MAX_KEYS = 128  # more scores than that leave no registers for the output
RESERVED_BYTES = 1_024  # barriers and alignment


@dataclasses.dataclass(frozen=True)
class Geometry:
    """How the rows of one slot and key/value head lie in the consumer warpgroups: head after head, `rows` each."""

    rows: int  # new rows per slot, padded
    groups: int  # query heads per key/value head
    head_dim: int

    @staticmethod
    def of(rows: int, groups: int, head_dim: int) -> "Geometry":
        # Eight rows are one tile of the shared memory layout: a head's rows must start at a tile.
        return Geometry(rows=8 if rows <= 8 else MAX_ROWS, groups=groups, head_dim=head_dim)

    @property
    def heads_per_consumer(self) -> int:
        return WARPGROUP_ROWS // self.rows

    @property
    def consumers(self) -> int:
        return -(-self.groups // self.heads_per_consumer)

    def obstacles(self) -> list[str]:
        """Why no tiles would fit."""
        found = []
        if self.head_dim % 64 or not 64 <= self.head_dim <= 256:
            found.append(f"the head size is {self.head_dim}, wanted 64, 128, 192 or 256")
        if self.consumers > MAX_CONSUMERS:
            most = MAX_CONSUMERS * self.heads_per_consumer
            found.append(f"{self.groups} query heads share a key/value head, wanted at most {most}")
        return found


@dataclasses.dataclass(frozen=True)
class Tiles:
    """How one call is cut into blocks of threads and steps."""

    splits: int  # blocks that share the context of one slot and key/value head
    stages: int = 2  # tiles of keys, and of values, in flight
    keys: int = KEYS  # positions per tile
    # "in_place" keeps weights and output in registers. "fresh" passes the weights through shared memory and adds each
    # product to the output: JAX's interpreter can run it, on a GPU it spills at head size 256.
    accumulate: Literal["in_place", "fresh"] = "in_place"

    def obstacles(self, geometry: Geometry) -> list[str]:
        """Why the kernel cannot run with these sizes."""
        found = []
        if self.splits < 1 or self.stages < 1:
            found.append(f"tiles have {self.splits} splits and {self.stages} stages, wanted at least one of each")
        if self.keys % KEYS or not KEYS <= self.keys <= MAX_KEYS:
            found.append(f"tiles have {self.keys} keys, wanted a multiple of {KEYS} up to {MAX_KEYS}")
        if (needed := self.shared_memory_bytes(geometry)) > SHARED_MEMORY_BYTES:
            found.append(f"tiles need {needed} bytes of shared memory, wanted at most {SHARED_MEMORY_BYTES}")
        return found

    def shared_memory_bytes(self, geometry: Geometry) -> int:
        """What one block of threads needs, for 2-byte operands."""
        query_rows = geometry.consumers * WARPGROUP_ROWS
        queries = query_rows * geometry.head_dim * 2
        context = 2 * self.stages * self.keys * geometry.head_dim * 2
        weights = query_rows * self.keys * 2 if self.accumulate == "fresh" else 0
        normalisers = query_rows * 4
        return queries + context + weights + normalisers + RESERVED_BYTES


def size_key(geometry: Geometry, *, slots: int, kv_heads: int) -> str:
    """The name of a size in the files of measured tiles."""
    return f"slots={slots} rows={geometry.rows} kv_heads={kv_heads} groups={geometry.groups} dim={geometry.head_dim}"


def default_tiles(geometry: Geometry, *, slots: int, kv_heads: int, sms: int) -> Tiles:
    """Every multiprocessor has one block, and 64 KiB or more of the context are in flight for it."""
    splits = max(1, sms // (slots * kv_heads))
    return Tiles(splits=splits, stages=2 if geometry.head_dim > 128 else 4)


def candidate_tiles(geometry: Geometry, *, slots: int, kv_heads: int, sms: int) -> tuple[Tiles, ...]:
    """The default first, then larger tiles, fewer and more splits, fewer and more stages, as far as they fit."""
    default = default_tiles(geometry, slots=slots, kv_heads=kv_heads, sms=sms)
    tried = [default]
    if geometry.head_dim <= 128:
        tried.append(dataclasses.replace(default, keys=2 * KEYS, stages=2))
    for splits in (default.splits // 2, default.splits * 2):
        tried.append(dataclasses.replace(default, splits=max(1, splits)))
    for stages in (default.stages - 1, default.stages + 1, default.stages + 2):
        tried.append(dataclasses.replace(default, stages=stages))
    fitting = [tiles for tiles in tried if not tiles.obstacles(geometry)]
    return tuple(dict.fromkeys(fitting))
