"""Tile sizes measured on a device, kept as one JSON file per device kind.

    {"device": "NVIDIA H200", "date": "2026-01-31", "jax": "0.11.2",
     "tiles": {"fp8_retrieval": {"rows=16": {"microseconds": 301.0, "tiles": {"vocab": 128, "stages": 10}}}}}

`make device-check` measures the candidates of every operation and writes such a file. Where a device or a size is not
listed, the operation's own heuristic decides.
"""

import dataclasses
import functools
import json
import re
from pathlib import Path
from typing import Any

from pallas_kernels.device import device_kind

FOLDER = Path(__file__).parent / "tuned"


def tuned_tiles[Tiles](op: str, size: str, heuristic: Tiles) -> Tiles:
    """The measured tiles of this size on the current device, or `heuristic`, an instance of the op's `Tiles`.

    Raises ValueError for a file whose fields are not those of `Tiles`: a stale file must not pass unseen.
    """
    kind = device_kind()
    entry = {} if kind is None else _read(file_of(kind)).get(op, {}).get(size)
    if not entry:
        return heuristic
    fields: Any = heuristic
    wanted = sorted(field.name for field in dataclasses.fields(fields))
    if sorted(entry["tiles"]) != wanted:
        raise ValueError(
            f"{file_of(kind or '').name}: {op} {size} has the fields {sorted(entry['tiles'])}, wanted {wanted};"
            " measure again with `make device-check`"
        )
    return type(heuristic)(**entry["tiles"])


def file_of(kind: str) -> Path:
    """Where the tiles of a device kind are kept."""
    return FOLDER / (re.sub(r"[^a-z0-9]+", "-", kind.lower()).strip("-") + ".json")


@functools.cache
def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())["tiles"] if path.exists() else {}
