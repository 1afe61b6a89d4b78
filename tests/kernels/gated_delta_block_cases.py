"""Inputs of `gated_delta_block`, and what becomes of them in float64."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from pallas_kernels.gated_delta import Records
from tests.gated_delta_oracle import Inputs
from tests.kernels.gated_delta_replay_cases import fold, tokens
from tests.oracle_drafter import wide

DIM, WIDTH, BLOCK = 128, 4, 16


@dataclasses.dataclass(frozen=True)
class BlockCase:
    """Positional arguments of `gated_delta_block`, and the outputs, state, keys, deltas and log decays they give."""

    arguments: tuple[Any, ...]
    key_heads: int
    o: np.ndarray
    state: np.ndarray
    k: np.ndarray
    d: np.ndarray
    g: np.ndarray


def case(
    seed: int, accepted: Sequence[int], length: Sequence[int], *, rows: int = BLOCK, key_heads: int = 1
) -> BlockCase:
    """A block after one whose first `accepted` rows count, per slot; the others are NaN.

    A key head has two value heads.
    """
    rng = np.random.default_rng(seed)
    slots, value_heads = len(accepted), 2 * key_heads
    channels = (2 * key_heads + value_heads) * DIM

    def bf16(*shape, scale=1.0):
        return jnp.asarray(rng.normal(0.0, scale, shape), jnp.bfloat16)

    mixed, conv = bf16(slots, rows, channels), bf16(slots, BLOCK + WIDTH - 1, channels)
    a, b, taps = bf16(slots, rows, value_heads), bf16(slots, rows, value_heads), bf16(channels, WIDTH, scale=0.5)
    a_log, dt_bias = (rng.normal(0.0, 0.5, value_heads).astype(np.float32) for _ in range(2))
    state = rng.normal(0.0, 1.0, (slots, value_heads, DIM, DIM)).astype(np.float32)
    keys = rng.normal(0.0, DIM**-0.5, (slots, BLOCK, key_heads, DIM)).astype(np.float32)
    deltas = rng.normal(0.0, 1.0, (slots, value_heads, DIM, BLOCK)).astype(np.float32)
    decays = -rng.uniform(0.0, 2.0, (slots, BLOCK, value_heads)).astype(np.float32)

    before = Inputs(q=keys, k=keys, v=np.zeros(0), g=decays, beta=decays, state=state)
    q, k, v, g, beta = _rows(wide(mixed), wide(conv), wide(a), wide(b), wide(taps), a_log, dt_bias, accepted, length)
    block = Inputs(q, k, v, g, beta, state)
    folded = fold(state, before, deltas, accepted)
    o, _, d = tokens(block, folded)
    rejected = np.arange(BLOCK)[None, :] >= np.asarray(accepted)[:, None]
    records = Records(
        k=jnp.asarray(np.where(rejected[..., None, None], np.nan, keys)),
        d=jnp.asarray(np.where(rejected[:, None, None, :], np.nan, deltas)),
        g=jnp.asarray(np.where(rejected[..., None], np.nan, decays)),
    )
    counts = (jnp.asarray(count, jnp.int32) for count in (accepted, length))
    arrays = (mixed, a, b, taps, jnp.asarray(a_log), jnp.asarray(dt_bias), jnp.asarray(state), records, conv)
    return BlockCase((*arrays, *counts), key_heads, o, folded, k, d, g)


def _rows(mixed, conv, a, b, taps, a_log, dt_bias, accepted, length):
    slots, rows, channels = mixed.shape
    value_heads = a.shape[2]
    key_heads = channels // DIM // 2 - value_heads // 2
    window = np.stack([conv[slot, start : start + WIDTH - 1] for slot, start in enumerate(accepted)])
    inputs = np.concatenate([window, mixed], axis=1)
    x = sum(inputs[:, tap : tap + rows] * taps[:, tap] for tap in range(WIDTH))
    x = x / (1 + np.exp(-x))
    q, k, v = np.split(x.reshape(slots, rows, -1, DIM), [key_heads, 2 * key_heads], axis=2)
    q, k = (y / np.sqrt(np.sum(y**2, axis=-1, keepdims=True) + 1e-6) for y in (q, k))
    valid = (np.arange(rows)[None, :] < np.asarray(length)[:, None])[..., None]
    g = np.where(valid, -np.exp(a_log) * np.log1p(np.exp(a + dt_bias)), 0.0)
    return q * DIM**-0.5, k, v, g, np.where(valid, 1 / (1 + np.exp(-b)), 0.0)
