"""One checkpoint opened, configured and resolved: where conversion, inspection and direct loading start."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dspine_jax.config import BlockFp8, DrafterConfig, TargetConfig
from dspine_jax.config.target import TEXT_MODEL_TYPE
from dspine_jax.errors import WeightsError
from dspine_jax.hf.folder import ModelFolder
from dspine_jax.hf.names import DRAFTER, PLAIN_TARGET, TARGET, TIED_HEAD, NameTable
from dspine_jax.hf.plan import Entry, Plan, resolve
from dspine_jax.hf.transforms import read_entry
from dspine_jax.weights import abstract_drafter, abstract_target

DTYPES = ("bfloat16", "float32")


@dataclass(frozen=True, kw_only=True)
class Model[Config: (TargetConfig, DrafterConfig)]:
    """A folder with its config in the chosen dtype; the weights are not resolved yet."""

    folder: ModelFolder
    config: Config

    @cached_property
    def table(self) -> NameTable:
        if not isinstance(self.config, TargetConfig):
            return DRAFTER
        return TARGET if self.config.model_type == TEXT_MODEL_TYPE else PLAIN_TARGET

    @cached_property
    def parameters(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Name, shape and dtype of each parameter; allocates nothing."""
        config, dtype = self.config, jnp.dtype(self.config.dtype)
        if isinstance(config, TargetConfig):
            return abstract_target(config, dtype)
        return abstract_drafter(config, dtype)

    def resolve(self, overrides: Mapping[str, str]) -> Plan:
        """The plan of the weights, with its faults inside."""
        tied = isinstance(self.config, TargetConfig) and self.config.tie_word_embeddings
        return resolve(
            self.table,
            self.parameters,
            self.folder.tensors,
            broken=self.folder.broken,
            overrides=overrides,
            fp8=BlockFp8.from_hf(self.folder.config) if isinstance(self.config, TargetConfig) else None,
            ignored=(TIED_HEAD,) if tied else (),
        )


@dataclass(frozen=True, kw_only=True)
class Source[Config: (TargetConfig, DrafterConfig)]:
    """A model with a faultless plan."""

    model: Model[Config]
    plan: Plan

    def read(self) -> Iterator[tuple[Entry, np.ndarray]]:
        """Every parameter in turn; each array is the caller's."""
        for entry in self.plan.entries:
            yield entry, read_entry(entry, self.model.folder.where)


def target_model(folder: ModelFolder, dtype: str | None) -> Model[TargetConfig]:
    """A target folder; dtype None takes the config's."""
    config = TargetConfig.from_hf(folder.config, folder.generation_config)
    return Model(folder=folder, config=replace(config, dtype=choose_dtype(dtype, config.dtype)))


def drafter_model(folder: ModelFolder, dtype: str | None) -> Model[DrafterConfig]:
    """A drafter folder; dtype None takes the config's."""
    config = DrafterConfig.from_hf(folder.config)
    return Model(folder=folder, config=replace(config, dtype=choose_dtype(dtype, config.dtype)))


def choose_dtype(wanted: str | None, declared: str) -> str:
    """The dtype of the weights in memory: what is wanted, else what the config declares."""
    if wanted is not None and wanted not in DTYPES:
        raise WeightsError(f"dtype {wanted!r} is not supported; choose one of {', '.join(DTYPES)}")
    if wanted is None and declared not in DTYPES:
        raise WeightsError(
            f"the config declares dtype {declared}, which the models do not run in; choose float32 "
            "(exact, twice the memory) or bfloat16 (rounds)"
        )
    return wanted or declared


def quantization_of(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The `quantization_config` of a config, at the top level or in the text part."""
    text = config.get("text_config")
    return config.get("quantization_config") or (text.get("quantization_config") if isinstance(text, dict) else None)
