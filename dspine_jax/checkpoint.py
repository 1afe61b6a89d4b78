"""Restoring a converted folder: manifest checked, weights restored by Orbax in bounded groups."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

from dspine_jax import manifest
from dspine_jax.config import DrafterConfig, TargetConfig
from dspine_jax.errors import WeightsError
from dspine_jax.manifest import Manifest
from dspine_jax.weights import abstract_drafter, abstract_target

GROUP_BYTES = 64 * 2**20
"""Parameters are restored in groups of at most this many bytes, a larger one alone: it bounds host memory."""

Flat = dict[str, jax.Array]
Abstract = dict[str, jax.ShapeDtypeStruct]


def restore(
    folder: str | Path, *, sharding: jax.sharding.Sharding | None = None
) -> tuple[TargetConfig, DrafterConfig, Flat, Flat]:
    """Configs and flat weights {parameter: array} of both models.

    Args:
        folder: what `dspine convert` wrote.
        sharding: where each array goes; by default the first device. What the folder was written with plays
            no part.

    Raises:
        WeightsError: no folder, an incomplete or damaged one, another version, or weights that do not fit
            the configs.
    """
    folder = Path(folder).absolute()
    found = _read_manifest(folder)
    target_config = TargetConfig.from_hf(found.configs.get("target", {}))
    drafter_config = DrafterConfig.from_hf(found.configs.get("drafter", {}))
    abstract = {
        "target": abstract_target(target_config, jnp.dtype(found.dtype)),
        "drafter": abstract_drafter(drafter_config, jnp.dtype(found.dtype)),
    }
    _check_parameters(folder, found, abstract)
    _check_files(folder, found)
    if sharding is None:
        sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    target, drafter = (
        _restore_flat(manifest.weights_folder(folder, model), abstract[model], sharding) for model in manifest.MODELS
    )
    return target_config, drafter_config, target, drafter


def _read_manifest(folder: Path) -> Manifest:
    if (folder / manifest.FILE).is_file():
        return Manifest.read(folder)
    if not folder.is_dir():
        if manifest.incomplete_sibling(folder).is_dir():
            raise WeightsError(
                f"{folder}: incomplete: its conversion stopped "
                f"(see {manifest.incomplete_sibling(folder)}); run it again"
            )
        raise WeightsError(f"{folder}: no such folder; `dspine convert` makes one")
    if (folder / "weights").is_dir() or folder.name.endswith(".incomplete"):
        raise WeightsError(f"{folder}: incomplete: it has no {manifest.FILE}; run the conversion again")
    raise WeightsError(
        f"{folder}: no converted folder (it has no {manifest.FILE}); make one with `dspine convert`, "
        "or load a pair of Hugging Face folders with load_hf"
    )


def _check_parameters(folder: Path, found: Manifest, abstract: Mapping[str, Abstract]) -> None:
    faults: list[str] = []
    for model, wanted in abstract.items():
        stored = found.parameters.get(model, {})
        faults += [f"{model} parameter {name} is missing" for name in wanted if name not in stored]
        faults += [f"{model} parameter {name} is unknown" for name in stored if name not in wanted]
        for name, leaf in wanted.items():
            want = (list(leaf.shape), str(leaf.dtype))
            if name in stored and (got := (stored[name].get("shape"), stored[name].get("dtype"))) != want:
                faults.append(f"{model} parameter {name} is stored as {got}, the config wants {want}")
    _raise_if(folder, "does not fit its own config; convert the sources again", faults)


def _check_files(folder: Path, found: Manifest) -> None:
    present = manifest.files_below(folder)
    faults = [
        f"{name} has {present.get(name, 'no')} bytes, {size} were written"
        for name, size in found.files.items()
        if present.get(name) != size
    ]
    _raise_if(folder, "incomplete or damaged; convert the sources again", faults)


def _raise_if(folder: Path, what: str, faults: list[str]) -> None:
    if faults:
        raise WeightsError(f"{folder}: {what}" + "".join(f"\n  - {fault}" for fault in faults))


def _restore_flat(path: Path, abstract: Abstract, sharding: jax.sharding.Sharding) -> Flat:
    flat: Flat = {}
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_ocdbt=False)) as checkpointer:
        for group in _groups(abstract):
            arguments = ocp.args.PyTreeRestore(
                item=group,
                restore_args={
                    name: ocp.ArrayRestoreArgs(sharding=sharding, global_shape=leaf.shape, dtype=leaf.dtype)
                    for name, leaf in group.items()
                },
                partial_restore=True,
            )
            flat.update(checkpointer.restore(path, args=arguments))
    return {name: flat[name] for name in abstract}


def _groups(abstract: Abstract) -> Iterator[Abstract]:
    group: Abstract = {}
    size = 0
    for name, leaf in abstract.items():
        nbytes = math.prod(leaf.shape) * leaf.dtype.itemsize
        if group and size + nbytes > GROUP_BYTES:
            yield group
            group, size = {}, 0
        group[name] = leaf
        size += nbytes
    if group:
        yield group
