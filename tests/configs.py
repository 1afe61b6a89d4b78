"""The real configuration files, and how a test varies them."""

import copy
import json
import pathlib
from typing import Any

FOLDER = pathlib.Path(__file__).parent / "golden" / "configs"
TARGET = json.loads((FOLDER / "qwen3.8-27b.json").read_text())
DRAFTER = json.loads((FOLDER / "qwen3.8-27b-dspine-b16.json").read_text())
QWEN3_8B = json.loads((FOLDER / "qwen3-8b.json").read_text())

DELETE: Any = object()


def with_changes(config: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """A copy of `config` with dotted keys set, or removed where the value is DELETE."""
    changed = copy.deepcopy(config)
    for dotted, value in changes.items():
        *sections, key = dotted.split(".")
        place = changed
        for section in sections:
            place = place[section]
        if value is DELETE:
            del place[key]
        else:
            place[key] = value
    return changed
