"""Tiny Hugging Face folders for tests of conversion and loading, written by the safetensors library."""

import json
import math
import os
import struct
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
from safetensors import TensorSpec, serialize_file

from dspine_jax.config import DrafterConfig, TargetConfig
from dspine_jax.weights import abstract_drafter, abstract_target
from tests.peers import ROOT
from tests.tiny import random_drafter, random_target, tiny_drafter_config, tiny_target_config

TARGET = tiny_target_config(dtype="bfloat16")
DRAFTER = tiny_drafter_config(TARGET)

Tensors = dict[str, np.ndarray]

_NAMES = {
    np.dtype(ml_dtypes.bfloat16): "bfloat16",
    np.dtype(ml_dtypes.float8_e4m3fn): "float8_e4m3fn",
}


def target_tensors(config: TargetConfig = TARGET, seed: int = 1, prefix: str | None = None) -> Tensors:
    """A target's weights under the names and in the shapes of a Hugging Face export."""
    if prefix is None:
        prefix = "model." if config.model_type == "qwen3" else "model.language_model."
    return {
        (name if name == "lm_head.weight" else prefix + name): (
            np.asarray(value)[:, None] if name.endswith("conv1d.weight") else np.asarray(value)
        )
        for name, value in random_target(config, seed).items()
    }


def drafter_tensors(config: DrafterConfig = DRAFTER, seed: int = 2) -> Tensors:
    return {name: np.asarray(value) for name, value in random_drafter(config, seed).items()}


def write_safetensors(path: Path, tensors: Mapping[str, np.ndarray], metadata: dict[str, str] | None = None) -> None:
    """One file by the library's own writer, from raw bytes, so that every dtype can be written."""
    kept = {name: np.ascontiguousarray(value) for name, value in tensors.items()}
    specs = {
        name: TensorSpec(
            dtype=_NAMES.get(value.dtype, value.dtype.name),
            shape=tensors[name].shape,
            data_ptr=value.ctypes.data,
            data_len=value.nbytes,
        )
        for name, value in kept.items()
    }
    serialize_file(specs, path, metadata=metadata)


def write_folder(
    folder: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, np.ndarray],
    *,
    shards: Mapping[str, str] | None = None,
) -> Path:
    """A model folder; `shards` maps tensor names to file names, others go to the first shard file."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    if shards is None:
        write_safetensors(folder / "model.safetensors", tensors)
        return folder
    first = min(shards.values())
    weight_map = {name: shards.get(name, first) for name in tensors}
    for shard in set(weight_map.values()):
        write_safetensors(folder / shard, {name: tensors[name] for name in tensors if weight_map[name] == shard})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


def write_pair(
    root: Path,
    *,
    target: TargetConfig = TARGET,
    drafter: DrafterConfig = DRAFTER,
    extra_target: Mapping[str, np.ndarray] | None = None,
) -> tuple[Path, Path]:
    """Folders `root/hf-target` and `root/hf-draft` of a pair that fits together."""
    tensors = target_tensors(target) | dict(extra_target or {})
    return (
        write_folder(root / "hf-target", target.to_hf(), tensors),
        write_folder(root / "hf-draft", drafter.to_hf(), drafter_tensors(drafter)),
    )


def write_sparse_folder(folder: Path, config: TargetConfig | DrafterConfig) -> Path:
    """A model folder of the right names and shapes whose data is a hole in the file, without disk space."""
    is_target = isinstance(config, TargetConfig)
    dtype = jnp.dtype(config.dtype)
    abstract = abstract_target(config, dtype) if is_target else abstract_drafter(config, dtype)
    header, position = {}, 0
    for parameter, leaf in abstract.items():
        name = f"model.{parameter}" if is_target and parameter != "lm_head.weight" else parameter
        shape = [leaf.shape[0], 1, *leaf.shape[1:]] if name.endswith("conv1d.weight") else list(leaf.shape)
        stop = position + math.prod(shape) * leaf.dtype.itemsize
        dtype_name = {"bfloat16": "BF16", "float32": "F32"}[str(leaf.dtype)]
        header[name] = {"dtype": dtype_name, "shape": shape, "data_offsets": [position, stop]}
        position = stop
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config.to_hf()))
    text = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + position)
    return folder


PEAK_MEMORY = """
def peak_bytes():
    # ru_maxrss of a child starts at its parent's; this counts the process itself.
    line = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024
"""


def same_bits(left: Any, right: Any) -> bool:
    """Equal dtype, shape and bytes."""
    left, right = np.asarray(left), np.asarray(right)
    return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()


def flat_equal(left: Mapping[str, Any], right: Mapping[str, Any]) -> bool:
    return left.keys() == right.keys() and all(same_bits(left[name], right[name]) for name in left)


def expected_flat(config: TargetConfig | DrafterConfig, seed: int, dtype: str | None = None) -> dict[str, Any]:
    """What a reader must return for the weights above, cast by jax where a dtype is given."""
    flat = random_target(config, seed) if isinstance(config, TargetConfig) else random_drafter(config, seed)
    if dtype is None:
        return flat
    return {
        name: value if value.dtype == jnp.float32 and _stays(name) else value.astype(dtype)
        for name, value in flat.items()
    }


def _stays(name: str) -> bool:
    return name.endswith(("A_log", "dt_bias", "linear_attn.norm.weight"))


def python(code: str, *arguments: str | Path, devices: int = 1, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh process with this many simulated CPU devices."""
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if check and done.returncode:
        raise RuntimeError(f"the process failed:\n{done.stderr[-4000:]}")
    return done
