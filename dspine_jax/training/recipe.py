"""A training recipe: one TOML file with everything that decides the result."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

TABLES = {
    "corpus": {"vocab_size", "held_out"},
    "target": {
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "full_attention_interval",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "rope_theta",
        "partial_rotary_factor",
        "rms_norm_eps",
        "linear_num_key_heads",
        "linear_num_value_heads",
        "linear_key_head_dim",
        "linear_value_head_dim",
        "linear_conv_kernel_dim",
        "max_position_embeddings",
    },
    "target_training": {"steps", "batch", "sequence", "learning_rate", "warmup", "weight_decay"},
    "drafter": {
        "num_hidden_layers",
        "intermediate_size",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "sliding_window",
        "block_size",
        "target_layer_ids",
        "transfer_dim",
        "message_dim",
        "head_topk",
    },
    "drafter_training": {
        "prompt_tokens",
        "sequence",
        "sequences",
        "steps",
        "batch",
        "anchors",
        "learning_rate",
        "warmup",
        "weight_decay",
        "position_decay",
    },
}

BUNDLED = Path(__file__).parent / "recipes" / "tiny-pair.toml"


def read_recipe(path: Path) -> Mapping[str, Any]:
    """The recipe's tables; every key must be known and present, so that a misspelt one cannot pass silently."""
    recipe = tomllib.loads(path.read_text(encoding="utf-8"))
    faults = [f"unknown table or key {key!r}" for key in recipe if key not in TABLES and key != "seed"]
    if not isinstance(recipe.get("seed"), int):
        faults.append("seed must be an integer")
    for table, keys in TABLES.items():
        got = set(recipe.get(table, {}))
        faults += [f"{table}: missing {key}" for key in sorted(keys - got)]
        faults += [f"{table}: unknown {key}" for key in sorted(got - keys)]
    if faults:
        raise ValueError(f"recipe {path}:\n  " + "\n  ".join(faults))
    return recipe
