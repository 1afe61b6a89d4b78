"""Reading of small JSON files that others wrote."""

import json
from pathlib import Path
from typing import Any

from dspine_jax.errors import WeightsError

SIZE_LIMIT = 64 * 2**20


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file of bounded size.

    Raises:
        WeightsError: the file is too large, no JSON, or no object.
    """
    size = path.stat().st_size
    if size > SIZE_LIMIT:
        raise WeightsError(f"{path}: {size} bytes of JSON exceed the limit of {SIZE_LIMIT}")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise WeightsError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise WeightsError(f"{path}: holds a JSON {type(value).__name__}, an object is needed")
    return value
