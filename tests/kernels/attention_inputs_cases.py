"""Inputs of `rotate_and_store`, and what they should give in float64."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from pallas_kernels.attention_inputs import Heads
from pallas_kernels.rope import Rope
from pallas_kernels.row_norm import Form, RowNorm
from tests.oracle_drafter import wide

EPS = 1e-2  # large enough that a wrong place for it shows
CACHE_ROWS = 40


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizes:
    """Of one call; a query's place has a gate behind it when `gated`, which must not be read."""

    heads: int
    kv_heads: int
    dim: int
    rotated: int
    form: Form
    gated: bool = False


# The heads of the 27B pair, and small ones.
TARGET = Sizes(heads=3, kv_heads=2, dim=256, rotated=64, form="one_plus", gated=True)
DRAFTER = Sizes(heads=4, kv_heads=1, dim=128, rotated=128, form="plain")
SMALL = Sizes(heads=1, kv_heads=2, dim=64, rotated=64, form="one_plus")


@dataclasses.dataclass(frozen=True)
class Case:
    """Positional arguments of `rotate_and_store`, and the queries and caches they give."""

    arguments: tuple[Any, ...]
    q: np.ndarray
    k_cache: np.ndarray
    v_cache: np.ndarray


def case(seed: int, sizes: Sizes, start: Sequence[int], kept: Sequence[int], *, rows: int, dtype: Any) -> Case:
    """`rows` rows per slot from position `start` on, of which the first `kept` go to places drawn for them.

    The others are NaN, and so are gates.
    """
    rng = np.random.default_rng(seed)
    slots = len(start)

    def draw(*shape):
        return np.array(jnp.asarray(rng.normal(size=shape), dtype))

    valid = np.arange(rows)[None, :] < np.asarray(kept)[:, None]
    at = np.where(valid, rng.permutation(CACHE_ROWS)[: slots * rows].reshape(slots, rows), CACHE_ROWS)
    positions = np.asarray(start)[:, None] + np.arange(rows)[None, :]
    place = sizes.dim * (2 if sizes.gated else 1)
    q = draw(slots, rows, sizes.heads, place)
    k, v = (draw(slots, rows, sizes.kv_heads, sizes.dim) for _ in range(2))
    q[..., sizes.dim :] = np.nan
    for one in (q, k, v):
        one[~valid] = np.nan
    q_weight, k_weight = draw(sizes.dim), draw(sizes.dim)
    caches = [draw(CACHE_ROWS, sizes.kv_heads, sizes.dim) for _ in range(2)]

    wanted = [wide(cache) for cache in caches]
    wanted[0][at[valid]] = _rotated(wide(k), wide(k_weight), positions, sizes)[valid]
    wanted[1][at[valid]] = wide(v)[valid]
    arguments = (
        [_heads(q, q_weight, sizes)],
        _heads(k, k_weight, sizes),
        jnp.asarray(v.reshape(slots, rows, -1)),
        *(jnp.asarray(cache) for cache in caches),
        jnp.asarray(at, jnp.int32),
        jnp.asarray(positions, jnp.int32),
        Rope(sizes.rotated, 1e4),
    )
    return Case(arguments, _rotated(wide(q[..., : sizes.dim]), wide(q_weight), positions, sizes), *wanted)


def _heads(x: np.ndarray, weight: np.ndarray, sizes: Sizes) -> Heads:
    norm = RowNorm(jnp.asarray(weight), EPS, sizes.form)
    return Heads(jnp.asarray(x.reshape(*x.shape[:2], -1)), norm, x.shape[2], sizes.dim)


def _rotated(x: np.ndarray, weight: np.ndarray, positions: np.ndarray, sizes: Sizes) -> np.ndarray:
    """Normed heads, whose pairs are complex numbers times exp(i position theta^(-2i/rotated))."""
    x = x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + EPS) * (weight + (sizes.form == "one_plus"))
    half = sizes.rotated // 2
    angle = positions[..., None, None] * 1e4 ** (-2 * np.arange(half) / sizes.rotated)
    turned = (x[..., :half] + 1j * x[..., half : sizes.rotated]) * np.exp(1j * angle)
    return np.concatenate([turned.real, turned.imag, x[..., sizes.rotated :]], axis=-1)
