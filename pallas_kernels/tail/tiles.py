"""How the tail's kernels divide the work."""

import dataclasses

from pallas_kernels.device import architecture
from pallas_kernels.skinny_matmul import BLOCK, stages_that_fit

CHOICES = 16  # candidates per position, of predecessors and of receivers
POSITIONS = BLOCK // CHOICES  # of one block of threads
PARTS = 3  # bfloat16 parts of a float32 factor
ITEM = 2  # bytes of bfloat16


@dataclasses.dataclass(frozen=True)
class Tiles:
    """Output columns of a block of threads, columns of K in one step, and steps in the air."""

    message_columns: int  # units of the message
    message_stages: int
    score_columns: int  # of the residual
    score_stages: int
    message_step: int = 128
    score_step: int = 64


def default_tiles(*, positions: int, hidden: int, message: int, multiprocessors: int) -> Tiles:
    """Narrow enough that a small call reaches every multiprocessor, wide enough that a large one reuses its loads."""
    groups = -(-positions // POSITIONS)

    def columns(outputs, step, most):
        widths = [n for n in range(step, most + 1, step) if outputs % n == 0]
        return next((n for n in widths if outputs // n * groups <= multiprocessors), widths[-1])

    # Multiples of 32: a row of the second product's operands is a whole number of swizzles. Three sums and an operand
    # of mma are more than a thread's registers at 64 columns.
    return with_stages(
        Tiles(
            message_columns=columns(message, 16, 64 if architecture().products == "wgmma" else 32),
            message_stages=0,
            score_columns=columns(hidden, 32, 160),
            score_stages=0,
        )
    )


def candidate_tiles(base: Tiles, *, hidden: int, message: int) -> list[Tiles]:
    """The default and some neighbours, to be timed on a device."""
    variants = [{}] + [{"message_columns": n} for n in (8, 32, 64)] + [{"score_columns": n} for n in (64, 128, 160)]
    tiles = [with_stages(dataclasses.replace(base, **variant)) for variant in variants]
    return [t for t in tiles if message % t.message_columns == 0 and hidden % t.score_columns == 0]


def with_stages(tiles: Tiles) -> Tiles:
    """As many steps in the air as shared memory holds, up to what covers the latency of memory."""
    units, columns = tiles.message_columns, tiles.score_columns
    message_step = (BLOCK + CHOICES + 3 * units) * tiles.message_step * ITEM
    score_step = (PARTS * BLOCK + columns) * tiles.score_step * ITEM
    return dataclasses.replace(
        tiles,
        message_stages=stages_that_fit(message_step, reserved=BLOCK * units * (4 + PARTS * ITEM), at_most=6),
        score_stages=stages_that_fit(
            score_step, reserved=(2 * BLOCK + POSITIONS) * columns * ITEM + BLOCK * 24 * 4, at_most=4
        ),
    )
