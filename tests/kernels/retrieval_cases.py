"""Inputs of the retrieval and what must come out, in float64."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.retrieval import CoarseHead, quantize_head


@dataclasses.dataclass(frozen=True)
class Case:
    """Queries and a head with its float8 copy."""

    h: jax.Array  # [R, H] bfloat16
    head: jax.Array  # [V, H]
    coarse_head: CoarseHead


def draw(*, rows: int, vocabulary: int, hidden: int, seed: int = 0) -> Case:
    """Normal values; head rows and queries of different lengths."""
    random = np.random.default_rng(seed)
    h = random.standard_normal((rows, hidden), np.float32) * np.exp2(random.uniform(-4, 4, (rows, 1)))
    head = random.standard_normal((vocabulary, hidden), np.float32)
    head *= random.uniform(0.5, 1.0, (vocabulary, 1)).astype(np.float32)
    return _case(h, head)


def draw_tied(*, rows: int, vocabulary: int, hidden: int, seed: int = 0) -> Case:
    """Small whole numbers: every product and sum is exact in every form, and scores tie by the dozen.

    The first column is 7 = 448 / 64, so that each row's float8 scale is 1/64 and its float8 values are exact.
    """
    random = np.random.default_rng(seed)
    head = random.integers(-1, 2, size=(vocabulary, hidden))
    head[:, 0] = 7
    h = random.integers(-1, 2, size=(rows, hidden))
    return _case(h, head)


def coarse_scores(case: Case) -> np.ndarray:
    """[R, V] by the float8 head."""
    return _wide(case.h) @ _wide(case.coarse_head.values).T * _wide(case.coarse_head.scale)


def retrieved(case: Case, *, coarse: int, keep: int) -> tuple[np.ndarray, np.ndarray]:
    """Ids and scores [R, keep]."""
    coarse_ids = first(coarse_scores(case), coarse)
    exact = np.einsum("rh,rkh->rk", _wide(case.h), _wide(case.head)[coarse_ids])
    order = np.lexsort((coarse_ids, -exact), axis=-1)[:, :keep]
    return np.take_along_axis(coarse_ids, order, axis=1), np.take_along_axis(exact, order, axis=1)


def first(scores: np.ndarray, count: int) -> np.ndarray:
    """Indices of the `count` best of each row, best first; the lower index wins a tie."""
    return np.argsort(-scores, axis=-1, kind="stable")[:, :count]


def _case(h: np.ndarray, head: np.ndarray) -> Case:
    bfloat16 = jnp.asarray(head.astype(jnp.bfloat16))
    return Case(h=jnp.asarray(h.astype(jnp.bfloat16)), head=bfloat16, coarse_head=jax.jit(quantize_head)(bfloat16))


def _wide(x) -> np.ndarray:
    return np.asarray(x).astype(np.float64)
