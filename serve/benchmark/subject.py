"""What is measured: a converted pair, or one of given sizes with random weights made on the device."""

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import dspine_jax
from dspine_jax import DraftOptions, Pair, load
from dspine_jax.pair import build_pair
from dspine_jax.planning.presets import fingerprint, read_drafter, read_target
from dspine_jax.weights import abstract_drafter, abstract_target

TINY = Path(dspine_jax.__file__).parent / "assets" / "tiny-pair"

# Name -> the configurations of target and drafter.
PRESETS = {
    "tiny": (str(TINY / "target"), str(TINY / "draft")),
    "qwen3.8-27b": ("qwen3.8-27b", "qwen3.8-27b-dspine-b16"),
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
    target, drafter = read_target(PRESETS[preset][0]), read_drafter(PRESETS[preset][1])
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
