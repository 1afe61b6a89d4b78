"""The projections of the layers of the 27B pair."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.projection import project, project_gated, project_norm
from pallas_kernels.row_norm import RowNorm
from tests.kernels.machine_code import Program

HIDDEN, INTERMEDIATE, EPS = 5120, 17408, 1e-6
ROWS = (16, 32, 64, 128)
# What the weights of one launch give: q|k|v, z, b and a of a gated delta layer; queries and gates, keys, values.
GATED_DELTA = (10240, 6144, 48, 48)
ATTENTION = (12288, 1024, 1024)


def bf16(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


def project_all(x, *weights, **options):
    return project(x, weights, **options)


def project_one_plus(x, weight, residual, scale, **options):
    return project_norm(x, weight, residual, RowNorm(scale, EPS, "one_plus"), **options)


def _several(name: str, outputs: tuple[int, ...], rows: int) -> Program:
    return Program(
        op="project",
        label=f"{name}, {rows} rows",
        function=functools.partial(project_all, implementation="mosaic_gpu"),
        shapes=(bf16(rows, HIDDEN), *(bf16(size, HIDDEN) for size in outputs)),
        bytes_moved=2 * (sum(outputs) * (HIDDEN + rows) + rows * HIDDEN),
    )


def _gated(rows: int) -> Program:
    weight = bf16(INTERMEDIATE, HIDDEN)
    return Program(
        op="project_gated",
        label=f"{rows} rows",
        function=functools.partial(project_gated, implementation="mosaic_gpu"),
        shapes=(bf16(rows, HIDDEN), weight, weight),
        bytes_moved=2 * (2 * INTERMEDIATE * HIDDEN + rows * (HIDDEN + INTERMEDIATE)),
    )


def _norm(name: str, depth: int, rows: int) -> Program:
    return Program(
        op="project_norm",
        label=f"{name}, {rows} rows",
        function=functools.partial(project_one_plus, implementation="mosaic_gpu"),
        shapes=(bf16(rows, depth), bf16(HIDDEN, depth), bf16(rows, HIDDEN), bf16(HIDDEN)),
        bytes_moved=2 * (HIDDEN * (depth + 1) + rows * (depth + 3 * HIDDEN)),
    )


PROGRAMS = tuple(
    program
    for rows in ROWS
    for program in (
        _several("gated delta", GATED_DELTA, rows),
        _several("attention", ATTENTION, rows),
        _gated(rows),
        _norm("mixer", 6144, rows),
        _norm("MLP", INTERMEDIATE, rows),
    )
)
