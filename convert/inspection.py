"""`dspine inspect`: what each tensor of a checkpoint would become, before anything is converted."""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from convert.options import add_dtype, add_map
from dspine_jax.config import ConfigError
from dspine_jax.config.target import PLAIN_ARCHITECTURE, PLAIN_MODEL_TYPE
from dspine_jax.errors import WeightsError
from dspine_jax.hf.folder import ModelFolder, open_folder
from dspine_jax.hf.overrides import split_overrides
from dspine_jax.hf.plan import Plan
from dspine_jax.hf.source import Model, drafter_model, target_model

SUMMARY = "show what each tensor of a target or drafter folder would become"


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="dspine inspect", description=SUMMARY)
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder of a target or a drafter")
    add_dtype(parser)
    add_map(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def main(argv: list[str]) -> int:
    """Run `dspine inspect` with these arguments; the exit status is 1 when there are faults."""
    options = parser().parse_args(argv)
    try:
        folder = open_folder(options.folder)
        model = _model(folder, options.dtype)
        overrides = split_overrides(options.overrides, {model.table.model: model.parameters})
        plan = model.resolve(overrides[model.table.model])
    except (ConfigError, WeightsError, OSError) as error:
        print(f"dspine inspect: error: {error}", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps(as_json(plan, folder), indent=1))
    else:
        print("\n".join(as_text(plan, folder, len(model.parameters))))
    return 1 if plan.faults else 0


def _model(folder: ModelFolder, dtype: str | None) -> Model:
    """A qwen3 model that is no plain language model is a drafter; all else is read, or refused, as a target."""
    config = folder.config
    is_drafter = config.get("model_type") == PLAIN_MODEL_TYPE and config.get("architectures") != [PLAIN_ARCHITECTURE]
    return drafter_model(folder, dtype) if is_drafter else target_model(folder, dtype)


def as_json(plan: Plan, folder: ModelFolder) -> dict[str, Any]:
    return {
        "model": plan.model,
        "folder": str(folder.path),
        "parameters": [
            {
                "parameter": entry.parameter,
                "shape": list(entry.shape),
                "dtype": str(entry.dtype),
                "tensor": entry.tensor,
                "source_shape": list(entry.source.shape),
                "source_dtype": entry.source.dtype,
                "transform": entry.transform,
                "scale": entry.scale,
                "matched_by": entry.how,
            }
            for entry in plan.entries
        ],
        "ignored": plan.ignored,
        "warnings": list(plan.warnings),
        "faults": list(plan.faults),
    }


def as_text(plan: Plan, folder: ModelFolder, wanted: int) -> Iterator[str]:
    yield f"{plan.model} checkpoint {folder.path}"
    for entry in plan.entries:
        scale = f" with {entry.scale}" if entry.scale else ""
        yield (
            f"  {entry.tensor} {entry.source.dtype} {list(entry.source.shape)} -> {entry.parameter} "
            f"{entry.dtype} {list(entry.shape)}  ({entry.transform}{scale}, by {entry.how})"
        )
    for tensor, reason in plan.ignored.items():
        yield f"  {tensor} ignored: {reason}"
    for warning in plan.warnings:
        yield f"  warning: {warning}"
    for fault in plan.faults:
        yield f"  FAULT: {fault}"
    yield (
        f"{len(plan.entries)} of {wanted} parameters filled, {len(plan.ignored)} tensors ignored, "
        f"{len(plan.faults)} faults"
    )
