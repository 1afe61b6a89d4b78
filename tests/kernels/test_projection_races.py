"""Races of the projections' kernels, and planted bugs that must not pass."""

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.matrix_unit import wgmma
from pallas_kernels.projection import Tiles, mosaic_gpu
from pallas_kernels.projection.tiles import STEP
from pallas_kernels.skinny_matmul import ring
from tests.kernels.interpreter import interpret
from tests.kernels.planted import nothing, planted, shadow_reads
from tests.kernels.planted_outcome import outcome
from tests.kernels.projection_cases import gated, normed, several
from tests.oracle_drafter import wide
from tests.tolerances import BF16_OP, FP32_OP, assert_close

pytestmark = pytest.mark.kernels
# Five steps of K through two slots, two tiles; 72 rows are two warpgroups that share the slots.
TILES = Tiles(columns=64, shares=1, stages=2)
ROWS, DEPTH, OUTPUTS = 72, 5 * STEP, 128


def _several(rows):
    case = several(1, rows=rows, depth=DEPTH, outputs=(OUTPUTS, 24))
    return lambda x, *w: mosaic_gpu.projections(x, w, TILES)[0], case.arguments, case.expected[0], BF16_OP


def _gated(rows):
    case = gated(2, rows=rows, depth=DEPTH, outputs=OUTPUTS)
    return functools.partial(mosaic_gpu.gated_projection, tiles=TILES), case.arguments, case.expected[0], BF16_OP


def _shares(rows):
    x, weight, *_ = normed(3, rows=rows, depth=2 * DEPTH, outputs=OUTPUTS).arguments
    parts = np.stack([wide(x)[:, at] @ wide(weight)[:, at].T for at in (slice(0, DEPTH), slice(DEPTH, None))])
    tiles = Tiles(columns=64, shares=2, stages=2)
    return functools.partial(mosaic_gpu.projection_shares, tiles=tiles), (x, weight), parts, FP32_OP


KERNELS = {"projection": _several, "gated_projection": _gated, "projection_shares": _shares}


@pytest.mark.parametrize("kernel", KERNELS)
def test_no_race_in_three_runs(kernel):
    function, arguments, want, bound = KERNELS[kernel](ROWS)
    for _ in range(3):
        got, races = interpret(function, *arguments)
        assert not races
        assert_close("result", got, want, bound)


def _one_arrival(*, num_arrivals: int, num_barriers: int = 1) -> Any:
    return plgpu.Barrier(num_arrivals=1 if num_arrivals > 1 else 2, num_barriers=num_barriers)


def _never_free(*, num_arrivals: int, num_barriers: int = 1) -> Any:
    """A slot that counts as free when one of two warpgroups is done: loads of x and weights are two arrivals too."""
    return plgpu.Barrier(num_arrivals=1 if num_arrivals == 2 else num_arrivals, num_barriers=num_barriers)


# Where, what is planted there, the kernel that shows it.
BUGS: dict[str, tuple[ModuleType, dict[str, Callable], Any]] = {
    "the loads of a step are not awaited": (ring, {"barrier_wait": nothing}, _several(16)),
    "a barrier counts wrong": (mosaic_gpu, {"Barrier": _one_arrival}, _shares(16)),
    "results are sent before they are visible": (mosaic_gpu, {"commit_smem": nothing}, _gated(16)),
    "a block ends before its results are sent": (mosaic_gpu, {"wait_smem_to_gmem": nothing}, _several(16)),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_shows(bug):
    module, functions, kernel = BUGS[bug]
    with planted(module, **functions):
        assert outcome(*kernel) != "right"


def test_a_slot_that_is_filled_one_step_early_shows(monkeypatch):
    monkeypatch.setattr(mosaic_gpu, "stream", functools.partial(ring.stream, in_flight=-1))
    with planted(wgmma, wgmma_wait=nothing):  # it refuses a negative count
        assert outcome(*_several(16)) != "right"


def test_operands_that_two_warpgroups_share():
    """A slot is filled again only when both have multiplied; the gated kernel has three loads and two warpgroups."""
    with shadow_reads(ring):
        assert outcome(*_gated(ROWS)) == "right"
    with shadow_reads(ring), planted(mosaic_gpu, Barrier=_never_free):
        assert outcome(*_gated(ROWS)) != "right"
