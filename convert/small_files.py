"""The small files that travel with the weights: configs and tokenizer, never code and never pickle."""

import shutil
from pathlib import Path

from dspine_jax.errors import WeightsError

NAMES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
)
SIZE_LIMIT = 64 * 2**20


def check_small_files(source: Path) -> None:
    """Raise WeightsError for a file above the limit, before anything is written."""
    for name in NAMES:
        path = source / name
        if path.is_file() and path.stat().st_size > SIZE_LIMIT:
            raise WeightsError(f"{path}: {path.stat().st_size} bytes exceed the limit of {SIZE_LIMIT} for this file")


def copy_small_files(source: Path, destination: Path) -> None:
    """Copy the known files that are there; contents only, no permissions or links."""
    destination.mkdir(parents=True)
    for name in NAMES:
        if (source / name).is_file():
            shutil.copyfile(source / name, destination / name)
