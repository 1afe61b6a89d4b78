"""How the bridge's kernels divide the work."""

import dataclasses

from pallas_kernels.skinny_matmul import BLOCK, stages_that_fit

ROW_LIMIT = 128  # rows whose accumulators and operands one block of threads holds
ITEM = 2  # bytes of bfloat16


@dataclasses.dataclass(frozen=True)
class Tiles:
    """Of every block of threads: its rows, its output columns, its share of K, and the steps of K in the air."""

    rows: int  # divides the rows of the call
    readout_columns: int  # codes
    readout_splits: int
    readout_stages: int
    message_columns: int  # units of the message
    message_stages: int
    write_columns: int  # of the residual
    write_stages: int
    step: int = 128  # columns of K


def default_tiles(*, rows: int, block_rows: int, hidden: int, code: int, multiprocessors: int) -> Tiles:
    """Spreads each weight over as many multiprocessors as there are, once.

    `rows` are those of the call, `block_rows` those of one draft block.
    """
    group = row_group(rows, block_rows)
    columns = 64
    tiles = rows // group * (code // columns)
    shares = [n for n in range(1, hidden // Tiles.step + 1) if hidden // Tiles.step % n == 0]
    return with_stages(
        Tiles(
            rows=group,
            readout_columns=columns,
            readout_splits=max((n for n in shares if n * tiles <= multiprocessors), default=1),
            readout_stages=0,
            message_columns=8,
            message_stages=0,
            write_columns=_narrowest(hidden, multiprocessors // (rows // group)),
            write_stages=0,
        )
    )


def candidate_tiles(base: Tiles, *, hidden: int, code: int, message: int) -> list[Tiles]:
    """The default and some neighbours, to be timed on a device."""
    variants: list[dict[str, int]] = [
        {},
        {"readout_columns": 32, "readout_splits": 4},
        {"readout_columns": 128, "readout_splits": 10},
        {"message_columns": 16},
        {"message_columns": 32},
        {"write_columns": 32},
        {"write_columns": 64},
    ]
    tiles = [with_stages(dataclasses.replace(base, **variant)) for variant in variants]
    return [
        t
        for t in tiles
        if hidden % (t.readout_splits * t.step) == 0
        and code % t.readout_columns == 0
        and message % t.message_columns == 0
        and hidden % t.write_columns == 0
    ]


def with_stages(tiles: Tiles) -> Tiles:
    """As many steps in the air as shared memory holds, up to what covers the latency of memory."""
    rows = -(-tiles.rows // BLOCK) * BLOCK

    def stages(columns, results, at_most):
        return stages_that_fit((rows + columns) * tiles.step * ITEM, reserved=results, at_most=at_most)

    moved = 2 * (BLOCK + 8) * tiles.message_columns * 4
    return dataclasses.replace(
        tiles,
        readout_stages=stages(tiles.readout_columns, rows * tiles.readout_columns * 4, 5),
        message_stages=stages(3 * tiles.message_columns, rows * tiles.message_columns * ITEM + moved, 8),
        write_stages=stages(tiles.write_columns, rows * (tiles.write_columns * ITEM + 4), 4),
    )


def row_group(rows: int, block_rows: int) -> int:
    """The most rows in whole draft blocks that divide `rows` and fit a block of threads."""
    blocks = rows // block_rows
    return block_rows * max(n for n in range(1, blocks + 1) if blocks % n == 0 and n * block_rows <= ROW_LIMIT)


def _narrowest(outputs, multiprocessors):
    # The narrowest tile that gives every multiprocessor at most one.
    widths = [n for n in range(8, 129, 8) if outputs % n == 0]
    return next((n for n in widths if outputs // n <= multiprocessors), widths[-1])
