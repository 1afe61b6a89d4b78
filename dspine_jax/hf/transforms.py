"""From stored bytes to a parameter's array, in row blocks: a large tensor never exists twice."""

import math
from collections.abc import Mapping

import numpy as np

from dspine_jax.hf.names import DEQUANTIZE_BLOCK
from dspine_jax.hf.plan import Entry
from dspine_jax.hf.tensor_file import TensorFile

BLOCK_BYTES = 32 * 2**20


def read_entry(entry: Entry, where: Mapping[str, TensorFile]) -> np.ndarray:
    """The parameter of `entry`, with its shape and dtype.

    A cast rounds to nearest even; widening is exact. An FP8 weight is multiplied by its block's scale in
    float32 before the cast: w[i, j] = q[i, j] * scale[i // rows, j // columns].
    """
    out = np.empty(entry.shape, entry.dtype)
    file, source = where[entry.tensor], entry.source
    # Squeezing drops a middle dimension of 1, so rows stay rows; a scalar is one row.
    rows = entry.shape[0] if entry.shape else 1
    flat = out.reshape(rows, -1)
    scale = None
    if entry.transform == DEQUANTIZE_BLOCK and entry.scale is not None:
        scale = where[entry.scale].read(entry.scale).astype(np.float32)
    step = _rows_per_block(entry, rows)
    for start in range(0, rows, step):
        part = flat[start : start + step]
        if source.numpy_dtype == entry.dtype:
            file.read_rows_into(entry.tensor, start, part)
            continue
        raw = np.empty(part.shape, source.numpy_dtype)
        file.read_rows_into(entry.tensor, start, raw)
        if scale is not None and entry.block is not None:
            part[...] = _dequantize(raw, scale, entry.block, start)
        else:
            part[...] = raw.astype(entry.dtype)
    return out


def _rows_per_block(entry: Entry, rows: int) -> int:
    row_bytes = max(math.prod(entry.shape[1:]) * np.dtype(np.float32).itemsize, 1)
    step = max(BLOCK_BYTES // row_bytes, 1)
    if entry.block is not None:
        # Whole blocks of scales, so that a read never starts inside one.
        step = max(step // entry.block[0], 1) * entry.block[0]
    return min(step, max(rows, 1))


def _dequantize(raw: np.ndarray, scale: np.ndarray, block: tuple[int, int], first_row: int) -> np.ndarray:
    rows, columns = raw.shape
    part = scale[first_row // block[0] : -(-(first_row + rows) // block[0])]
    spread = np.repeat(np.repeat(part, block[0], axis=0)[:rows], block[1], axis=1)[:, :columns]
    return raw.astype(np.float32) * spread
