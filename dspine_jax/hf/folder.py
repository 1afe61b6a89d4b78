"""One Hugging Face model folder: its configs and where each of its tensors lies."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dspine_jax.errors import WeightsError
from dspine_jax.hf.tensor_file import TensorFile, TensorInfo
from dspine_jax.json_file import read_json
from dspine_jax.manifest import is_converted

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"


@dataclass(frozen=True, kw_only=True)
class ModelFolder:
    """A folder opened and checked.

    `files` are the weight files in name order. `where` tells the file of each tensor. `broken` holds, for
    names that cannot be read as announced, what is wrong: whether that matters depends on the name (see
    `plan`).
    """

    path: Path
    config: dict[str, Any]
    generation_config: dict[str, Any] | None
    files: tuple[TensorFile, ...]
    where: dict[str, TensorFile]
    broken: dict[str, str] = field(default_factory=dict)

    @property
    def tensors(self) -> dict[str, TensorInfo]:
        return {name: file.tensors[name] for name, file in self.where.items()}


def open_folder(path: Path) -> ModelFolder:
    """Open a folder with `config.json` and safetensors weights (one file, or shards with an index).

    Raises:
        WeightsError: no such folder, a converted folder, no or several sets of weights, a damaged file.
    """
    if not path.is_dir():
        raise WeightsError(f"{path}: no such folder; a Hugging Face model folder is needed")
    _refuse_converted(path)
    if not (path / "config.json").is_file():
        raise WeightsError(f"{path}: has no config.json; a Hugging Face model folder is needed")
    generation = path / "generation_config.json"
    files, where, broken = _locate(path)
    return ModelFolder(
        path=path,
        config=read_json(path / "config.json"),
        generation_config=read_json(generation) if generation.is_file() else None,
        files=files,
        where=where,
        broken=broken,
    )


def _refuse_converted(path: Path) -> None:
    """A second conversion would find other names and layouts under the same folder name."""
    for folder in (path, path.parent, path.parent.parent):
        if is_converted(folder):
            raise WeightsError(
                f"{path}: belongs to {folder}, which is already converted by dspine; load it with "
                "dspine_jax.load, or give the Hugging Face folder that it was made from"
            )


def _locate(path: Path) -> tuple[tuple[TensorFile, ...], dict[str, TensorFile], dict[str, str]]:
    single, index = path / SINGLE_FILE, path / INDEX_FILE
    if index.is_file():
        weight_map = _weight_map(index)
        if single.is_file() and SINGLE_FILE not in weight_map.values():
            raise WeightsError(
                f"{path}: holds both {SINGLE_FILE} and {INDEX_FILE}, and the index does not list that file; "
                "remove the set that is out of date"
            )
        return _locate_sharded(path, weight_map)
    if not single.is_file():
        raise WeightsError(_no_weights(path))
    file = TensorFile(single)
    return (file,), dict.fromkeys(file.tensors, file), {}


def _no_weights(path: Path) -> str:
    message = f"{path}: neither {SINGLE_FILE} nor {INDEX_FILE} is here"
    others = sorted(item.name for item in path.iterdir() if item.suffix in {".bin", ".pt", ".pth", ".safetensors"})
    if others:
        message += f" (found {', '.join(others[:8])}; pickled weights are never read: save them as safetensors)"
    return message


def _weight_map(index: Path) -> dict[str, str]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise WeightsError(f"{index}: weight_map must be a non-empty object of tensor name to shard file")
    for name, shard in weight_map.items():
        plain = isinstance(shard, str) and Path(shard).name == shard and "\\" not in shard
        if not plain or not shard.endswith(".safetensors"):
            raise WeightsError(
                f"{index}: tensor {name!r} points to {shard!r}; a shard must be a plain *.safetensors name "
                "in the same folder"
            )
    return weight_map


def _locate_sharded(
    path: Path, weight_map: dict[str, str]
) -> tuple[tuple[TensorFile, ...], dict[str, TensorFile], dict[str, str]]:
    shards = {shard: TensorFile(path / shard) for shard in sorted(set(weight_map.values())) if (path / shard).is_file()}
    where: dict[str, TensorFile] = {}
    broken: dict[str, str] = {}
    for name, shard in weight_map.items():
        file = shards.get(shard)
        if file is None:
            broken[name] = f"the index places it in {shard}, and that shard is missing from {path}"
        elif name not in file.tensors:
            broken[name] = f"the index places it in {shard}, and that shard does not hold it"
        else:
            where[name] = file
    for shard, file in shards.items():
        for name in file.tensors:
            if weight_map.get(name) != shard:
                place = weight_map.get(name, "no shard at all")
                broken[name] = f"{shard} holds it, and the index places it in {place}"
                where.pop(name, None)
    return tuple(shards.values()), where, broken
