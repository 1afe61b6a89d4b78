"""What is measured: a converted pair, or one of given sizes with random weights made on the device."""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import dspine_jax
from dspine_jax import DraftOptions, Pair, load
from dspine_jax.config import DrafterConfig, TargetConfig
from dspine_jax.json_file import read_json
from dspine_jax.pair import build_pair
from dspine_jax.weights import abstract_drafter, abstract_target

ASSETS = Path(dspine_jax.__file__).parent / "assets"

# Name -> the configurations of target and drafter.
PRESETS = {
    "tiny": ("tiny-pair/target/config.json", "tiny-pair/draft/config.json"),
    "qwen3.8-27b": ("configs/qwen3.8-27b.json", "configs/qwen3.8-27b-dspine-b16.json"),
}
SCALE = 0.02


@dataclasses.dataclass(frozen=True)
class Subject:
    """The pair, and what a report says about it."""

    pair: Pair
    name: str
    random_weights: bool

    def describe(self) -> dict[str, Any]:
        """The `model` object of a report."""
        pair = self.pair
        return {
            "name": self.name,
            "weights": "random" if self.random_weights else "converted",
            "dtype": str(pair.dtype),
            "target_hash": fingerprint(pair.target_config),
            "draft_hash": fingerprint(pair.drafter_config),
            "block_size": pair.drafter_config.block_size,
            "draft_options": dataclasses.asdict(pair.plan.options),
            "weight_bytes": sum(leaf.nbytes for leaf in jax.tree.leaves(pair.weights)),
        }


def converted(folder: Path, *, dtype: str | None, options: DraftOptions) -> Subject:
    """A folder that `dspine convert` wrote."""
    return Subject(pair=load(folder, dtype=dtype, options=options), name=str(folder), random_weights=False)


def random_weights(preset: str, *, dtype: str | None, options: DraftOptions) -> Subject:
    """The sizes of a preset, the same values on every run. Raises ValueError for an unknown preset."""
    if preset not in PRESETS:
        raise ValueError(f"the preset is {preset!r}, wanted one of {', '.join(PRESETS)}")
    target_file, drafter_file = (ASSETS / file for file in PRESETS[preset])
    target = TargetConfig.from_hf(read_json(target_file))
    drafter = DrafterConfig.from_hf(read_json(drafter_file))
    kind = jnp.dtype(target.dtype if dtype is None else dtype)
    pair = build_pair(
        target,
        drafter,
        _draw(abstract_target(target, kind), seed=0),
        _draw(abstract_drafter(drafter, kind), seed=1),
        dtype=kind,
        options=options,
    )
    return Subject(pair=pair, name=preset, random_weights=True)


def fingerprint(config: TargetConfig | DrafterConfig) -> str:
    """The same for equal configurations, however their files are written."""
    return hashlib.sha256(json.dumps(config.to_hf(), sort_keys=True).encode()).hexdigest()[:16]


def _draw(abstract: Mapping[str, jax.ShapeDtypeStruct], seed: int) -> dict[str, jax.Array]:
    """Normal values, one compiled program per shape, placed as a loaded checkpoint is."""
    keys = jax.random.split(jax.random.key(seed), len(abstract))
    return {
        name: jax.device_put(_normal(key, spec.shape, spec.dtype), jax.devices()[0])
        for key, (name, spec) in zip(keys, abstract.items(), strict=True)
    }


@functools.partial(jax.jit, static_argnums=(1, 2))
def _normal(key: jax.Array, shape: tuple[int, ...], dtype: jnp.dtype) -> jax.Array:
    return (SCALE * jax.random.normal(key, shape, jnp.float32)).astype(dtype)
