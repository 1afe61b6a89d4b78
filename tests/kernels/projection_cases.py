"""Inputs of the projections, and what they give in float64."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from pallas_kernels.projection import project, project_gated, project_norm, project_residual
from pallas_kernels.row_norm import RowNorm
from tests.oracle_drafter import wide

EPS = 1e-6


@dataclasses.dataclass(frozen=True)
class Case:
    """A call: `function(*arguments, implementation=, tiles=)`, and its results in float64."""

    function: Callable
    arguments: tuple[Any, ...]
    expected: tuple[np.ndarray, ...]

    def results(self, out: Any) -> tuple[Any, ...]:
        """What the function returned, as a tuple."""
        return out if isinstance(out, tuple) else (out,)


def draw(rng: np.random.Generator, *shape: int, dtype: Any = jnp.bfloat16) -> Any:
    """Normal values; those of a weight are scaled so that products stay near one."""
    return jnp.asarray(rng.normal(0.0, 1.0, shape) * (shape[-1] ** -0.5 if len(shape) == 2 else 1.0), dtype)


def rows_of(rng: np.random.Generator, rows: int, width: int, dtype: Any) -> Any:
    """Rows that differ in size by a factor of 30."""
    return jnp.asarray(rng.normal(0.0, 1.0, (rows, width)) * rng.uniform(0.1, 3.0, (rows, 1)), dtype)


def several(seed: int, *, rows: int, depth: int, outputs: tuple[int, ...], dtype: Any = jnp.bfloat16) -> Case:
    """`project` by several weights."""
    rng = np.random.default_rng(seed)
    x, weights = rows_of(rng, rows, depth, dtype), [draw(rng, size, depth, dtype=dtype) for size in outputs]

    def function(x, *weights, **options):
        return project(x, weights, **options)

    return Case(function, (x, *weights), tuple(wide(x) @ wide(weight).T for weight in weights))


def gated(seed: int, *, rows: int, depth: int, outputs: int, dtype: Any = jnp.bfloat16) -> Case:
    """`project_gated`."""
    rng = np.random.default_rng(seed)
    x, gate, up = rows_of(rng, rows, depth, dtype), *(draw(rng, outputs, depth, dtype=dtype) for _ in range(2))
    g, u = wide(x) @ wide(gate).T, wide(x) @ wide(up).T
    return Case(project_gated, (x, gate, up), (g / (1 + np.exp(-g)) * u,))


def residual(seed: int, *, rows: int, depth: int, outputs: int, dtype: Any = jnp.bfloat16) -> Case:
    """`project_residual`."""
    rng = np.random.default_rng(seed)
    x, weight = rows_of(rng, rows, depth, dtype), draw(rng, outputs, depth, dtype=dtype)
    old = rows_of(rng, rows, outputs, dtype)
    return Case(project_residual, (x, weight, old), (wide(old) + wide(x) @ wide(weight).T,))


def normed(
    seed: int,
    *,
    rows: int,
    depth: int,
    outputs: int,
    form: Any = "one_plus",
    with_residual: bool = True,
    dtype: Any = jnp.bfloat16,
) -> Case:
    """`project_norm`."""
    case = residual(seed, rows=rows, depth=depth, outputs=outputs, dtype=dtype)
    x, weight, old = case.arguments
    scale = draw(np.random.default_rng(seed + 1), outputs, dtype=dtype)

    def function(x, weight, scale, *old, **options):
        return project_norm(x, weight, old[0] if old else None, RowNorm(scale, EPS, form), **options)

    total = case.expected[0] if with_residual else wide(x) @ wide(weight).T
    norm = total / np.sqrt(np.mean(total**2, axis=-1, keepdims=True) + EPS)
    norm = norm * (wide(scale) + (1 if form == "one_plus" else 0))
    return Case(function, (x, weight, scale, *([old] if with_residual else [])), (total, norm))


# One of each, by name: what a test with small sizes takes.
KINDS: dict[str, Callable[..., Case]] = {
    "several": lambda seed, outputs=128, **sizes: several(seed, outputs=(outputs, outputs // 2, 24, 6), **sizes),
    "gated": gated,
    "residual": residual,
    "normed": normed,
    "plain norm": functools.partial(normed, form="plain", with_residual=False),
}
