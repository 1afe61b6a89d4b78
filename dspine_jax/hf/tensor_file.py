"""Strict reader of one safetensors file.

The safetensors library has no NumPy type for float8 and returns whole tensors only. Conversion needs float8
and row blocks (so that a cast never holds two copies of a large tensor), hence this reader. Layout of the
format: 8 bytes header length (little-endian), a JSON header, then the data section that the tensors cover
without holes.
"""

import json
import math
import struct
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from dspine_jax.errors import WeightsError

DTYPES: dict[str, np.dtype] = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "F8_E8M0": np.dtype(ml_dtypes.float8_e8m0fnu),
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "I16": np.dtype(np.int16),
    "I8": np.dtype(np.int8),
    "U64": np.dtype(np.uint64),
    "U32": np.dtype(np.uint32),
    "U16": np.dtype(np.uint16),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
}

HEADER_LIMIT = 100_000_000
_LENGTH_FIELD = 8


@dataclass(frozen=True, kw_only=True)
class TensorInfo:
    """What a file's header says of one tensor. `start` and `stop` are byte positions in the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int = 0
    stop: int = 0

    @property
    def numpy_dtype(self) -> np.dtype:
        return DTYPES[self.dtype]


class TensorFile:
    """One safetensors file: header checked when opened, data read on demand and never mapped."""

    def __init__(self, path: Path):
        self.path = path
        self.size = path.stat().st_size
        self.tensors = _read_header(path, self.size)

    @cached_property
    def name(self) -> str:
        return self.path.name

    def read(self, name: str) -> np.ndarray:
        """The whole tensor, in its own dtype."""
        info = self.tensors[name]
        out = np.empty(info.shape, info.numpy_dtype)
        self.read_rows_into(name, 0, out.reshape(info.shape or (1,)))
        return out

    def read_rows_into(self, name: str, first_row: int, out: np.ndarray) -> None:
        """Fill `out` [R, ...] (contiguous, the tensor's dtype) with rows first_row .. first_row + R.

        A scalar counts as one row.
        """
        info = self.tensors[name]
        row_bytes = (info.stop - info.start) // max(info.shape[0] if info.shape else 1, 1)
        buffer = memoryview(out.reshape(-1).view(np.uint8))
        with open(self.path, "rb", buffering=0) as file:
            file.seek(info.start + first_row * row_bytes)
            filled = 0
            while filled < len(buffer):
                count = file.readinto(buffer[filled:])
                if not count:
                    raise WeightsError(f"{self.path}: ended while tensor {name!r} was read; did the file change?")
                filled += count


def _read_header(path: Path, size: int) -> dict[str, TensorInfo]:
    if size < _LENGTH_FIELD:
        raise WeightsError(f"{path}: {size} bytes is too short for a safetensors file (truncated download?)")
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(_LENGTH_FIELD))
        if length > HEADER_LIMIT:
            raise WeightsError(
                f"{path}: header of {length} bytes exceeds the limit of {HEADER_LIMIT}; "
                "this is not a safetensors file, or it is damaged"
            )
        if _LENGTH_FIELD + length > size:
            raise WeightsError(
                f"{path}: truncated: the header needs {_LENGTH_FIELD + length} bytes, the file has {size}"
            )
        raw = file.read(length)
    try:
        header = json.loads(raw.decode("utf-8"), object_pairs_hook=_unique)
    except (UnicodeDecodeError, json.JSONDecodeError, _DuplicateKey, RecursionError) as error:
        raise WeightsError(f"{path}: header is not valid JSON: {error}") from error
    if not isinstance(header, dict):
        raise WeightsError(f"{path}: header is a JSON {type(header).__name__}, an object is needed")
    _check_metadata(path, header.pop("__metadata__", None))
    data_start = _LENGTH_FIELD + length
    tensors = {name: _entry(path, name, entry, data_start) for name, entry in header.items()}
    _check_coverage(path, tensors, data_start, size)
    return tensors


class _DuplicateKey(ValueError):
    pass


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _DuplicateKey(f"key {key!r} occurs twice")
        found[key] = value
    return found


def _check_metadata(path: Path, metadata: Any) -> None:
    """Free text for people; absent, null and empty are all common."""
    if metadata is None:
        return
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise WeightsError(f"{path}: __metadata__ must map strings to strings")


def _entry(path: Path, name: str, entry: Any, data_start: int) -> TensorInfo:
    where = f"{path}: tensor {name!r}"
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise WeightsError(f"{where}: the header entry must have exactly dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise WeightsError(f"{where}: unknown dtype {dtype!r}; known: {', '.join(DTYPES)}")
    if not _is_sizes(shape):
        raise WeightsError(f"{where}: shape {shape!r} is not a list of non-negative integers")
    if not _is_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise WeightsError(f"{where}: data_offsets {offsets!r} is not an ordered pair of positions")
    needed = math.prod(shape) * DTYPES[dtype].itemsize
    if offsets[1] - offsets[0] != needed:
        raise WeightsError(f"{where}: {dtype} {shape} needs {needed} bytes, its offsets hold {offsets[1] - offsets[0]}")
    return TensorInfo(dtype=dtype, shape=tuple(shape), start=data_start + offsets[0], stop=data_start + offsets[1])


def _is_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _check_coverage(path: Path, tensors: dict[str, TensorInfo], data_start: int, size: int) -> None:
    """The data section is covered exactly: no hole, no overlap, nothing missing and nothing after the end."""
    position = data_start
    for name, info in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].stop)):
        if info.start != position:
            kind = "overlaps the tensor before it" if info.start < position else "leaves a hole before it"
            raise WeightsError(f"{path}: tensor {name!r} {kind} (starts at {info.start}, expected {position})")
        position = info.stop
    if position > size:
        raise WeightsError(f"{path}: truncated: the tensors need {position} bytes, the file has {size}")
    if position < size:
        raise WeightsError(f"{path}: {size - position} bytes follow the last tensor; the file is damaged")
