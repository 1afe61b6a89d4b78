"""The safetensors reader against files by the library's writer, and against damaged files made by hand."""

import json
import math
import struct
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from dspine_jax.errors import WeightsError
from dspine_jax.hf.tensor_file import TensorFile
from tests.checkpoints import same_bits, write_safetensors


def raw_file(path: Path, header: dict | bytes, data: bytes = b"", padding: int = 0) -> Path:
    text = (header if isinstance(header, bytes) else json.dumps(header).encode()) + b" " * padding
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def entry(dtype: str = "F32", shape: tuple[int, ...] = (2,), offsets: tuple[int, int] = (0, 8)) -> dict:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def test_bfloat16_keeps_every_bit_pattern(tmp_path):
    patterns = np.arange(2**16, dtype=np.uint16).reshape(256, 256)
    write_safetensors(tmp_path / "a.safetensors", {"x": patterns.view(ml_dtypes.bfloat16)})
    got = TensorFile(tmp_path / "a.safetensors").read("x")
    assert got.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(got.view(np.uint16), patterns)


def e4m3_value(pattern: int) -> float:
    """The value of a pattern from the format's definition: 1 sign, 4 exponent (bias 7), 3 mantissa bits."""
    sign, exponent, mantissa = -1.0 if pattern & 0x80 else 1.0, (pattern >> 3) & 0xF, pattern & 7
    if exponent == 15 and mantissa == 7:
        return math.nan
    if exponent == 0:
        return sign * mantissa / 8 * 2.0**-6
    return sign * (1 + mantissa / 8) * 2.0 ** (exponent - 7)


def test_every_float8_pattern_has_its_exact_value(tmp_path):
    patterns = np.arange(256, dtype=np.uint8)
    write_safetensors(tmp_path / "a.safetensors", {"x": patterns.view(ml_dtypes.float8_e4m3fn)})
    got = TensorFile(tmp_path / "a.safetensors").read("x").astype(np.float32)
    np.testing.assert_array_equal(got, np.array([e4m3_value(pattern) for pattern in range(256)], np.float32))
    assert got[0x7E] == 448 and got[0xFE] == -448 and got[1] == 2.0**-9


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64, np.int32, np.uint8])
@pytest.mark.parametrize("shape", [(), (3,), (4, 5), (2, 1, 3), (0, 4)])
def test_dtypes_and_shapes_of_the_library_writer(tmp_path, dtype, shape):
    value = np.random.default_rng(0).integers(0, 100, shape).astype(dtype).reshape(shape)
    write_safetensors(tmp_path / "a.safetensors", {"first": np.ones(3, np.float32), "x": value})
    file = TensorFile(tmp_path / "a.safetensors")
    assert same_bits(file.read("x"), value)
    assert file.tensors["x"].shape == shape


def test_rows_are_read_from_the_middle(tmp_path):
    value = np.arange(60, dtype=np.float32).reshape(10, 6)
    write_safetensors(tmp_path / "a.safetensors", {"x": value})
    out = np.empty((3, 6), np.float32)
    TensorFile(tmp_path / "a.safetensors").read_rows_into("x", 4, out)
    np.testing.assert_array_equal(out, value[4:7])


@pytest.mark.parametrize(
    "metadata", [{}, {"__metadata__": {}}, {"__metadata__": None}, {"__metadata__": {"format": "pt"}}]
)
def test_metadata_may_be_absent_null_or_empty(tmp_path, metadata):
    path = raw_file(tmp_path / "a.safetensors", metadata | {"x": entry()}, np.array([1, 2], "<f4").tobytes())
    np.testing.assert_array_equal(TensorFile(path).read("x"), [1, 2])


def test_a_long_padded_header_is_accepted(tmp_path):
    path = raw_file(tmp_path / "a.safetensors", {"x": entry()}, np.array([1, 2], "<f4").tobytes(), padding=100_000)
    np.testing.assert_array_equal(TensorFile(path).read("x"), [1, 2])


@pytest.mark.parametrize(
    ("header", "data", "message"),
    [
        ({"x": entry()}, b"0" * 9, "1 bytes follow the last tensor"),
        ({"x": entry()}, b"0" * 7, "truncated: the tensors need"),
        ({"x": entry(), "y": entry(offsets=(4, 12))}, b"0" * 12, "'y' overlaps"),
        ({"x": entry(), "y": entry(offsets=(9, 17))}, b"0" * 17, "'y' leaves a hole"),
        ({"x": entry(offsets=(0, 9))}, b"0" * 9, "needs 8 bytes, its offsets hold 9"),
        ({"x": entry(offsets=(8, 0))}, b"0" * 8, "not an ordered pair"),
        ({"x": entry(shape=(-2,))}, b"0" * 8, "not a list of non-negative"),
        ({"x": {**entry(), "shape": [True, 2]}}, b"0" * 8, "not a list of non-negative"),
        ({"x": entry(dtype="F4")}, b"0" * 8, "unknown dtype 'F4'"),
        ({"x": {**entry(), "more": 1}}, b"0" * 8, "must have exactly"),
        ({"x": 3}, b"", "must have exactly"),
        ({"__metadata__": {"a": 1}}, b"", "must map strings to strings"),
        (b"[1]", b"", "an object is needed"),
        (b"{nonsense", b"", "not valid JSON"),
        (b'{"x": 1, "x": 2}', b"", "'x' occurs twice"),
        (b"\xff\xfe", b"", "not valid JSON"),
    ],
)
def test_damaged_files_are_refused(tmp_path, header, data, message):
    path = raw_file(tmp_path / "a.safetensors", header, data)
    with pytest.raises(WeightsError, match=message) as error:
        TensorFile(path)
    assert "a.safetensors" in str(error.value)


def test_a_header_beyond_the_file_or_the_limit_is_refused(tmp_path):
    path = tmp_path / "a.safetensors"
    path.write_bytes(b"1234")
    with pytest.raises(WeightsError, match="too short"):
        TensorFile(path)
    path.write_bytes(struct.pack("<Q", 100) + b"{}")
    with pytest.raises(WeightsError, match="truncated: the header needs 108 bytes, the file has 10"):
        TensorFile(path)
    path.write_bytes(struct.pack("<Q", 2**60) + b"{}")
    with pytest.raises(WeightsError, match="exceeds the limit"):
        TensorFile(path)


def test_a_file_that_shrinks_after_opening_is_noticed(tmp_path):
    path = raw_file(tmp_path / "a.safetensors", {"x": entry()}, b"0" * 8)
    file = TensorFile(path)
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(WeightsError, match="ended while tensor 'x' was read"):
        file.read("x")
