"""Configurations by name, by file or by folder."""

import hashlib
import json
from pathlib import Path
from typing import Any

from dspine_jax.config import ConfigError, DrafterConfig, TargetConfig
from dspine_jax.json_file import read_json

FOLDER = Path(__file__).parents[1] / "assets" / "configs"


def names() -> list[str]:
    """The configurations that ship with the project."""
    return sorted(path.name.removesuffix(".json") for path in FOLDER.glob("*.json"))


def read_target(source: str) -> TargetConfig:
    """The target's configuration: a preset, a `config.json`, or a folder that holds one.

    Raises ValueError for what is neither, WeightsError for what is no JSON object,
    ConfigError for a configuration of another model.
    """
    path = _locate(source)
    generation = path.with_name("generation_config.json")
    return TargetConfig.from_hf(read_json(path), read_json(generation) if generation.is_file() else None)


def read_drafter(source: str) -> DrafterConfig:
    """The drafter's configuration, in the same way."""
    return DrafterConfig.from_hf(read_json(_locate(source)))


def fingerprint(config: TargetConfig | DrafterConfig) -> str:
    """The same for equal configurations, however their files are written."""
    canonical: dict[str, Any] = config.to_hf()
    return hashlib.sha256(json.dumps(canonical, sort_keys=True).encode()).hexdigest()[:16]


def in_one_line(error: Exception) -> str:
    """An error's text on one line; every fault of a ConfigError."""
    if isinstance(error, ConfigError):
        head = str(error).partition("\n")[0]
        return f"{head}: {' '.join(error.faults)}"
    return " ".join(str(error).split())


def _locate(source: str) -> Path:
    path = Path(source)
    if path.is_dir():
        path /= "config.json"
        if not path.is_file():
            raise ValueError(f"the folder {source} has no config.json")
    if path.is_file():
        return path
    if source in names():
        return FOLDER / f"{source}.json"
    raise ValueError(f"{source!r} is no file, no folder and no preset; the presets are {', '.join(names())}")
