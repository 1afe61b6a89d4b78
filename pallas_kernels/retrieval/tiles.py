"""Sizes of the float8 kernel: how much of the head a block works on at a time."""

import dataclasses
from collections.abc import Iterator

from pallas_kernels.device import architecture
from pallas_kernels.retrieval.selection import TILE

CHUNK = 128  # of the hidden size: one swizzled line of float8, and the longest sum in the tensor core's accumulator
ROWS = (16, 32, 64, 128)  # queries per call; fewer are padded
RESERVE = 4_096  # barriers and alignment
FLOAT32_BYTES = 4


@dataclasses.dataclass(frozen=True)
class Tiles:
    """One block works on `consumers` tiles of 64 tokens at a time; a cluster of blocks shares its loads of queries."""

    consumers: int  # warpgroups of 64 tokens, 2 to 4
    stages: int  # chunks of head and queries in flight
    cluster: int = 1  # blocks, 1 or 2
    blocks: int | None = None  # persistent blocks in all, a multiple of `cluster`; None: one per multiprocessor

    @property
    def tokens(self) -> int:
        """Tokens of a block."""
        return self.consumers * TILE

    def shared_memory(self, rows: int) -> int:
        """Bytes per block."""
        stage = (self.tokens + 2 * rows) * CHUNK
        return self.stages * stage + self.tokens * rows * FLOAT32_BYTES + RESERVE


def most_rows() -> int:
    """Queries of one launch. The operands of mma lie in registers, which 128 queries' sums would not leave free."""
    return ROWS[-1] if architecture().products == "wgmma" else 64


def default_tiles(rows: int) -> Tiles:
    """A heuristic. Every block reads all queries anew for each of its steps, through the second-level cache.

    More tokens per step keep that traffic below the head's: it is 1/6, 1/3, 2/3 and 2 of it for 16, 32, 64 and 128
    rows. Of 248320 tokens, 2 or 3 consumers leave 132 blocks busy for 98% of their steps, 4 for 92%; 128 rows leave
    registers for 2, and so does mma, whose operands lie there as well. A cluster of two would halve the traffic, but no
    interpreter runs its shared loads: it is a candidate to measure, not a default.
    """
    return _deepest(rows, consumers=2 if rows == 128 or architecture().products == "mma" else 3, cluster=1)


def candidate_tiles(rows: int) -> tuple[Tiles, ...]:
    """What to try on a device."""
    most = {16: 4, 32: 4, 64: 3, 128: 2}[rows] if architecture().products == "wgmma" else 2
    return tuple(
        _deepest(rows, consumers=consumers, cluster=cluster) for consumers in range(2, most + 1) for cluster in (1, 2)
    )


def padded_rows(rows: int) -> int:
    """The smallest of ROWS that holds 1 to 128 rows."""
    return min(size for size in ROWS if size >= rows)


def obstacles(tiles: Tiles, rows: int) -> Iterator[str]:
    """Why the kernel cannot run with these tiles."""
    consumers = (2, 3, 4) if architecture().products == "wgmma" else (2,)
    if tiles.consumers not in consumers or tiles.cluster not in (1, 2) or tiles.stages < 1:
        yield f"{tiles}: wanted {consumers} consumers, a cluster of 1 or 2 and at least 1 stage"
    elif tiles.blocks is not None and (tiles.blocks < tiles.cluster or tiles.blocks % tiles.cluster):
        yield f"{tiles}: wanted a multiple of {tiles.cluster} blocks"
    elif tiles.shared_memory(rows) > (most := architecture().shared_memory_bytes):
        yield f"{tiles} need {tiles.shared_memory(rows)} bytes of shared memory, wanted at most {most}"


def _deepest(rows: int, *, consumers: int, cluster: int) -> Tiles:
    """With as many stages as fit."""
    one, two = (Tiles(consumers=consumers, stages=stages, cluster=cluster).shared_memory(rows) for stages in (1, 2))
    stages = 1 + (architecture().shared_memory_bytes - one) // (two - one)
    return Tiles(consumers=consumers, stages=stages, cluster=cluster)
