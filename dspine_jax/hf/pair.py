"""A Hugging Face target and drafter together: configs checked against each other, every tensor resolved."""

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp

from dspine_jax.config import DrafterConfig, TargetConfig, check_pair
from dspine_jax.errors import WeightsError
from dspine_jax.hf.folder import open_folder
from dspine_jax.hf.overrides import split_overrides
from dspine_jax.hf.plan import report
from dspine_jax.hf.source import Source, drafter_model, quantization_of, target_model

Flat = dict[str, jax.Array]


@dataclass(frozen=True, kw_only=True)
class PairSource:
    """Both checkpoints, resolved without a fault. Both configs carry the same `dtype`."""

    target: Source[TargetConfig]
    drafter: Source[DrafterConfig]

    @property
    def dtype(self) -> str:
        return self.target.model.config.dtype

    @property
    def warnings(self) -> tuple[str, ...]:
        return self.target.plan.warnings + self.drafter.plan.warnings


def open_pair(
    target: str | Path, draft: str | Path, *, dtype: str | None = None, overrides: Iterable[str] = ()
) -> PairSource:
    """Open both folders, check the pair and resolve every tensor; no weight is read.

    Args:
        dtype: "bfloat16" or "float32" for both models; None takes what the target's config declares.
        overrides: entries "parameter=tensor.name", with "target:" or "drafter:" before a parameter of both.

    Raises:
        ConfigError, WeightsError: with every fault found.
    """
    target_folder, drafter_folder = open_folder(Path(target)), open_folder(Path(draft))
    of_target = target_model(target_folder, dtype)
    of_drafter = drafter_model(drafter_folder, of_target.config.dtype)
    check_pair(
        of_target.config,
        of_drafter.config,
        target_quantization=quantization_of(target_folder.config),
        drafter_quantization=quantization_of(drafter_folder.config),
    )
    per_model = split_overrides(overrides, {"target": of_target.parameters, "drafter": of_drafter.parameters})
    plans = of_target.resolve(per_model["target"]), of_drafter.resolve(per_model["drafter"])
    reports = [
        report(plan.model, str(folder.path), plan.faults)
        for plan, folder in zip(plans, (target_folder, drafter_folder), strict=True)
        if plan.faults
    ]
    if reports:
        raise WeightsError("\n".join(reports))
    return PairSource(target=Source(model=of_target, plan=plans[0]), drafter=Source(model=of_drafter, plan=plans[1]))


def read_pair_hf(
    *, target: str | Path, draft: str | Path, dtype: str | None = None, map: Iterable[str] = ()
) -> tuple[TargetConfig, DrafterConfig, Flat, Flat]:
    """Configs and flat weights {parameter: array} of both models, read without conversion.

    For small pairs: every weight passes through host memory. Arguments and errors as `open_pair`. Tensors
    that are announced but missing in ignored families give a UserWarning.
    """
    source = open_pair(target, draft, dtype=dtype, overrides=map)
    for message in source.warnings:
        warnings.warn(message, stacklevel=2)
    target_flat, drafter_flat = (
        {entry.parameter: jnp.asarray(array) for entry, array in each.read()}
        for each in (source.target, source.drafter)
    )
    return source.target.model.config, source.drafter.model.config, target_flat, drafter_flat
