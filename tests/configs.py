"""The real configuration files, and how a test varies them."""

import copy
import dataclasses
import json
import pathlib
from typing import Any

from dspine_jax.config import DrafterConfig, TargetConfig

TINY_PAIR = pathlib.Path(__file__).parents[1] / "dspine_jax" / "assets" / "tiny-pair"
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


def two_layer_pair() -> tuple[TargetConfig, DrafterConfig]:
    """A layer of each kind and a drafter of one layer, in the bundled pair's sizes: what compiles fastest."""
    target, drafter = bundled_pair()
    kinds = ("full_attention", "linear_attention")
    target = dataclasses.replace(target, num_hidden_layers=2, layer_types=kinds)
    drafter = dataclasses.replace(
        drafter,
        num_hidden_layers=1,
        layer_types=drafter.layer_types[:1],
        num_target_layers=2,
        target_layer_ids=(0,),
    )
    return target, drafter


def bundled_pair() -> tuple[TargetConfig, DrafterConfig]:
    """The configurations of the bundled pair."""
    target, drafter = (json.loads((TINY_PAIR / model / "config.json").read_text()) for model in ("target", "draft"))
    return TargetConfig.from_hf(target), DrafterConfig.from_hf(drafter)
