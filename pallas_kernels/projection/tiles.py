"""How a projection's kernels divide the work."""

import dataclasses
from collections.abc import Sequence
from typing import Literal

from pallas_kernels.device import architecture
from pallas_kernels.matrix_unit import matrix_unit
from pallas_kernels.skinny_matmul import BLOCK, stages_that_fit

ROW_LIMIT = 128  # rows of one call: two warpgroups of a block of threads, 64 each
STEP = 64  # columns of K that are loaded at a time: a line of shared memory
ITEM = 2  # bytes of bfloat16
MOST_STAGES = 8
MOST_SHARES = 8  # that one block of threads adds up for a row
START = 48 * 1024  # weights that a block could have read while it starts and waits for its first ones
# "several": weights side by side, a tile belongs to one. "gated": a tile has the same outputs of two weights.
# "shares": tiles of one weight, each of a share of K, whose float32 sums are added afterwards.
Kind = Literal["several", "gated", "shares"]
# Outputs of the widest tile: what a thread's registers hold beside everything else, by what makes the products.
WIDEST = {
    "wgmma": {"several": 128, "gated": 136, "shares": 160},
    "mma": {"several": 128, "gated": 96, "shares": 160},
}


@dataclasses.dataclass(frozen=True)
class Tiles:
    """Outputs of a block of threads, in how many shares K is cut, and steps of K in the air."""

    columns: int
    shares: int
    stages: int


def default_tiles(
    kind: Kind, *, rows: int, outputs: Sequence[int], depth: int, multiprocessors: int, first: int = 0
) -> Tiles:
    """The cut that keeps the busiest multiprocessor busy for the shortest time, then the one that reads least.

    Every block reads all rows, so of equally fast cuts the widest tiles are the best. `first` is the place in that
    order: 0 the best.
    """

    def time_and_traffic(cut):
        columns, shares = cut
        blocks, share = shares * sum(-(-size // columns) for size in outputs), depth // shares
        return -(-blocks // multiprocessors) * (columns * share + START), blocks * (rows + columns) * share

    ranked = sorted(_cuts(kind, rows, outputs, depth), key=time_and_traffic)
    columns, shares = ranked[min(first, len(ranked) - 1)]
    return Tiles(columns=columns, shares=shares, stages=_stages(kind, rows, columns))


def candidate_tiles(
    kind: Kind, *, rows: int, outputs: Sequence[int], depth: int, multiprocessors: int, count: int = 5
) -> list[Tiles]:
    """The default and the next best, to be timed on a device."""
    sizes = {"rows": rows, "outputs": outputs, "depth": depth, "multiprocessors": multiprocessors}
    return list(dict.fromkeys(default_tiles(kind, **sizes, first=place) for place in range(count)))


def _cuts(kind, rows, outputs, depth):
    widest = min(WIDEST[architecture().products][kind], max(outputs))
    widths = [n for n in range(8, widest + 1, 8) if all(size % n == 0 for size in outputs if size >= n)]
    step = matrix_unit().columns_step(min(rows, BLOCK))
    widths = [n for n in widths if n % step == 0] or widths
    # A weight narrower than the tile has a tile of its own width.
    steps = depth // STEP
    shares = [n for n in range(1, MOST_SHARES + 1) if steps % n == 0] if kind == "shares" else [1]
    return [(width, share) for width in widths for share in shares]


def _stages(kind, rows, columns):
    block = matrix_unit().block_rows(min(rows, BLOCK), (columns,))
    padded = -(-rows // block) * block
    weights = 2 if kind == "gated" else 1
    result = columns * (4 if kind == "shares" else ITEM)
    step = (padded + weights * columns) * STEP * ITEM
    # Narrower weights may have a place for their results beside the others'.
    return stages_that_fit(step, reserved=padded * result * (2 if kind == "several" else 1), at_most=MOST_STAGES)
