"""Sizes of the kernel: what fits, what to take by default, what to try on a device."""

import dataclasses
from typing import Literal

from pallas_kernels.device import architecture

WARPGROUP_ROWS = 64  # rows of one product: query rows of one consumer warpgroup
MAX_CONSUMERS = 2  # a third would leave too few registers for a float32 output of 64 x 256
MAX_ROWS = 16  # new rows per slot
KEYS = 16  # the least that a tile of keys may have: the depth of one product
WGMMA_KEYS = 64  # the same for wgmma: one swizzled row of weights
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
    keys: int = WGMMA_KEYS  # positions per tile
    # "in_place" adds to the output in its registers; on Hopper it also keeps the weights there. "fresh" passes them
    # through shared memory and makes each product apart: with wgmma JAX's interpreter can run only that, on a GPU it
    # spills at head size 256.
    accumulate: Literal["in_place", "fresh"] = "in_place"
    # 1: each consumer warpgroup in a block of its own, which reads the context again; None: all in one.
    consumers: Literal[1] | None = None

    def consumers_of(self, geometry: Geometry) -> int:
        """Consumer warpgroups of one block."""
        return self.consumers or geometry.consumers

    def obstacles(self, geometry: Geometry) -> list[str]:
        """Why the kernel cannot run with these sizes."""
        found = []
        if self.splits < 1 or self.stages < 1:
            found.append(f"tiles have {self.splits} splits and {self.stages} stages, wanted at least one of each")
        least = WGMMA_KEYS if architecture().products == "wgmma" else KEYS
        if self.keys % least or not least <= self.keys <= MAX_KEYS:
            found.append(f"tiles have {self.keys} keys, wanted a multiple of {least} up to {MAX_KEYS}")
        if (needed := self.shared_memory_bytes(geometry)) > (most := architecture().shared_memory_bytes):
            found.append(f"tiles need {needed} bytes of shared memory, wanted at most {most}")
        return found

    @property
    def stores_weights(self) -> bool:
        """Whether the weights go to their product through shared memory."""
        return self.accumulate == "fresh" or architecture().products != "wgmma"

    def shared_memory_bytes(self, geometry: Geometry) -> int:
        """What one block of threads needs, for 2-byte operands."""
        query_rows = self.consumers_of(geometry) * WARPGROUP_ROWS
        queries = query_rows * geometry.head_dim * 2
        context = 2 * self.stages * self.keys * geometry.head_dim * 2
        weights = query_rows * self.keys * 2 if self.stores_weights else 0
        normalisers = query_rows * 4
        return queries + context + weights + normalisers + RESERVED_BYTES


def size_key(geometry: Geometry, *, slots: int, kv_heads: int) -> str:
    """The name of a size in the files of measured tiles."""
    return f"slots={slots} rows={geometry.rows} kv_heads={kv_heads} groups={geometry.groups} dim={geometry.head_dim}"


def default_tiles(geometry: Geometry, *, slots: int, kv_heads: int, sms: int) -> Tiles:
    """Every multiprocessor has one block, and 64 KiB or more of the context are in flight for it, if that much fits."""
    deep = geometry.head_dim > 128
    # ptxas keeps to 168 registers a thread for three warpgroups of compute capability 12: two fit an output of 256.
    alone = 1 if deep and architecture().capability >= 12 else None
    groups = geometry.consumers if alone else 1
    splits = max(1, sms // (slots * kv_heads * groups))
    if architecture().products == "wgmma":
        return Tiles(splits=splits, stages=2 if deep else 4)
    # Keys lie in registers during their product: more of them would spill beside the output.
    keys = 32 if deep else 64
    tried = [
        Tiles(splits=splits, keys=n, stages=stages, consumers=alone) for n in (keys, KEYS) for stages in (4, 3, 2, 1)
    ]
    return next((tiles for tiles in tried if not tiles.obstacles(geometry)), tried[-1])


def candidate_tiles(geometry: Geometry, *, slots: int, kv_heads: int, sms: int) -> tuple[Tiles, ...]:
    """The default first, then larger tiles, fewer and more splits, fewer and more stages, as far as they fit."""
    default = default_tiles(geometry, slots=slots, kv_heads=kv_heads, sms=sms)
    tried = [default]
    if geometry.head_dim <= 128:
        tried.append(dataclasses.replace(default, keys=MAX_KEYS, stages=2))
    for splits in (default.splits // 2, default.splits * 2):
        tried.append(dataclasses.replace(default, splits=max(1, splits)))
    for stages in (default.stages - 1, default.stages + 1, default.stages + 2):
        tried.append(dataclasses.replace(default, stages=stages))
    fitting = [tiles for tiles in tried if not tiles.obstacles(geometry)]
    return tuple(dict.fromkeys(fitting))
