"""Races of the tail's kernels, and planted bugs that must not pass."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.bf16_parts import split
from pallas_kernels.skinny_matmul import ring
from pallas_kernels.tail import Tiles, mosaic_gpu
from pallas_kernels.tail.tiles import CHOICES
from tests.kernels.interpreter import interpret
from tests.kernels.planted import nothing, planted
from tests.kernels.planted_outcome import late_copies, outcome
from tests.kernels.tail_cases import EPS, TailCase
from tests.oracle_drafter import wide
from tests.tolerances import FP32_OP, assert_close

pytestmark = pytest.mark.kernels
# Four steps of K through two slots; two blocks of threads for the scores.
TILES = Tiles(message_columns=128, message_stages=2, score_columns=64, score_stages=2, message_step=32, score_step=32)
CASE = TailCase.draw(0, slots=1, positions=4, hidden=128, code=128, message=128)
WANT = CASE.expected()


def scores(*arguments):
    return mosaic_gpu.tail_mosaic_gpu(*arguments, eps=EPS, tiles=TILES)


def shares(x, m, head, write, norm):
    return mosaic_gpu.score_shares(x, m, head, write, norm, TILES)[..., : CHOICES + 1].sum(0)


def _shares() -> tuple[tuple[Any, ...], np.ndarray]:
    """The second kernel alone: its arguments, and the dots and squares that it gives in float64."""
    m = np.random.default_rng(1).normal(size=(64, 128)).astype(np.float32)
    parts = jnp.stack(split(jnp.asarray(m)))
    x, head = CASE.x[0], CASE.head[0].reshape(64, -1)
    y = wide(x)[:, None] + (m.astype(np.float64) @ wide(CASE.write).T).reshape(4, 16, -1)
    dots = np.einsum("puh,pvh->puv", wide(CASE.norm) * y, wide(CASE.head[0]))
    want = np.concatenate([dots, (y**2).sum(-1, keepdims=True)], axis=-1)
    return (x, parts, head, CASE.write, CASE.norm), want.reshape(64, -1)


ARGUMENTS, SHARES = _shares()


def test_no_race_in_three_runs():
    for _ in range(3):
        got, races = interpret(scores, *CASE.arguments)
        assert not races
        assert_close("scores", got, WANT, FP32_OP)


def _next_row(*args: Any, **kwargs: Any) -> Any:
    return plgpu.broadcasted_iota(*args, **kwargs) + 1


def _one_fewer(*, num_arrivals: int, num_barriers: int = 1) -> Any:
    return plgpu.Barrier(num_arrivals=num_arrivals - 1, num_barriers=num_barriers)


BUGS: dict[str, tuple[ModuleType, dict[str, Callable]]] = {
    "the loads of a step are not awaited": (ring, {"barrier_wait": nothing}),
    "a barrier counts wrong": (mosaic_gpu, {"Barrier": _one_fewer}),
    "results are sent before they are visible": (mosaic_gpu, {"commit_smem": nothing}),
    "a block ends before its results are sent": (mosaic_gpu, {"wait_smem_to_gmem": nothing}),
    "a row takes its neighbour's position": (mosaic_gpu, {"broadcasted_iota": _next_row}),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_shows(bug):
    module, functions = BUGS[bug]
    with planted(module, **functions):
        assert outcome(shares, ARGUMENTS, SHARES, FP32_OP) != "right"


@pytest.mark.parametrize(("wait", "expected"), [(True, "right"), (False, "wrong numbers")])
def test_residual_and_candidates_are_awaited(wait, expected):
    with late_copies(mosaic_gpu, wait=wait):
        assert outcome(shares, ARGUMENTS, SHARES, FP32_OP) == expected


def test_a_lost_part_shows(monkeypatch):
    """Two of the three bfloat16 parts are not float32."""

    def two(value):
        high, middle, low = split(value)
        return high, middle, jnp.zeros_like(low)

    monkeypatch.setattr(mosaic_gpu, "split", two)
    assert outcome(scores, CASE.arguments, WANT, FP32_OP) == "wrong numbers"
