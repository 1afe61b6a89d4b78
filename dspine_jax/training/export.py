"""Writing a trained model as a Hugging Face folder with the released names."""

import json
from collections.abc import Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
from safetensors.flax import save_file

from dspine_jax.config import DrafterConfig, TargetConfig
from dspine_jax.weights import abstract_drafter, abstract_target


def write_target(folder: Path, config: TargetConfig, flat: Mapping[str, jax.Array]) -> None:
    """config.json, generation_config.json and model.safetensors of the text-only target."""
    abstract = abstract_target(config, jnp.dtype(config.dtype))
    tensors = {}
    for name, spec in abstract.items():
        value = jnp.asarray(flat[name], spec.dtype)
        if name.endswith("conv1d.weight"):
            value = value[:, None, :]
        tensors[name if name == "lm_head.weight" else f"model.{name}"] = value
    _write(folder, config.to_hf(), tensors)
    _write_json(folder / "generation_config.json", {"eos_token_id": list(config.eos_token_ids)})


def write_drafter(folder: Path, config: DrafterConfig, flat: Mapping[str, jax.Array]) -> None:
    """config.json and model.safetensors of the drafter."""
    abstract = abstract_drafter(config, jnp.dtype(config.dtype))
    tensors = {name: jnp.asarray(flat[name], spec.dtype) for name, spec in abstract.items()}
    _write(folder, config.to_hf(), tensors)


def _write(folder: Path, config: dict, tensors: Mapping[str, jax.Array]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / "config.json", config)
    save_file(dict(tensors), str(folder / "model.safetensors"), metadata={"format": "np"})


def _write_json(path: Path, value: dict) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
