"""The replay kernel's synchronisation: no race, and planted bugs that must not pass.

The matrix products' operands are written only by the warpgroup that multiplies, after it has read the accumulator, so
there is no buffer that could be released too early: nothing for shadow reads to find.
"""

import itertools
import re
from collections.abc import Callable

import jax
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.gated_delta import mosaic_parts, mosaic_replay, mosaic_replay_body, mosaic_replay_operands
from tests.kernels import jax_private
from tests.kernels.gated_delta_replay_cases import Case, case, lost_memory
from tests.kernels.interpreter import WORKSTATION, gpu, interpret, interpreting
from tests.kernels.planted import nothing, planted
from tests.tolerances import FP32_REPLAY, assert_close

pytestmark = pytest.mark.kernels

# Three tiles per thread block and two in shared memory: buffers are used again.
TILES = mosaic_replay.Tiles(per_block=3, stages=2)
# Two blocks: one starts at a head and ends in the middle of the next, one does the rest.
WHOLE = case((9,), seed=8)
# One block whose tiles are a head each.
SMALL = case((9,), seed=8, value_dim=64, changes=(lost_memory,))


def replay(*arguments):
    return mosaic_replay.replay(*arguments, tiles=TILES)


@pytest.fixture(autouse=True)
def _fresh_traces():
    """The kernel is traced once per shape: a planted bug must not meet an older trace, nor stay in a later one."""
    jax.clear_caches()
    yield
    jax.clear_caches()


def check(case: Case, out) -> None:
    o, state, records = out
    for name, got, want in (("output", o, case.o), ("state", state, case.state), ("deltas", records.d, case.d)):
        assert_close(name, got, want, FP32_REPLAY)


def test_no_race_in_three_runs():
    with interpreting(cores=2):
        function = jax.jit(replay)
        for _ in range(3):
            check(WHOLE, function(*WHOLE.arguments))
        assert not jax_private.races_found()


def without(name: str, *calls: int) -> Callable:
    """plgpu's function, which does nothing at its numbered calls while the kernel is traced."""
    count, original = itertools.count(), getattr(plgpu, name)
    return lambda *args, **kwargs: (nothing if next(count) in calls else original)(*args, **kwargs)


def assert_noticed(function: Callable = replay) -> None:
    """The kernel as it is now races, fails or gives wrong numbers."""
    try:
        out, races = interpret(function, *SMALL.arguments)
    except jax.errors.JaxRuntimeError as error:
        if re.search("no threads observed phase|operations completed before kernel finished", str(error)):
            return
        raise
    if not races:
        with pytest.raises(AssertionError, match="relative rms"):
            check(SMALL, out)


@pytest.mark.parametrize(
    ("module", "name", "calls"),
    [
        pytest.param(mosaic_replay_body, "barrier_wait", (0,), id="rows are read before they have come"),
        pytest.param(mosaic_replay_body, "barrier_wait", (1,), id="a tile is read before it has come"),
        pytest.param(mosaic_replay_body, "commit_smem", (4,), id="results leave before they are written"),
        pytest.param(mosaic_parts, "commit_smem", (2, 3), id="the state leaves before it is written"),
        pytest.param(mosaic_replay_body, "wait_smem_to_gmem", (0,), id="results are overwritten while they leave"),
        pytest.param(mosaic_replay_body, "wait_smem_to_gmem", (1,), id="a tile is loaded over one that leaves"),
        pytest.param(mosaic_replay_body, "wait_smem_to_gmem", (2,), id="the kernel ends before its stores"),
    ],
)
def test_a_missing_synchronisation_is_noticed(module, name, calls):
    with planted(module, **{name: without(name, *calls)}):
        assert_noticed()


# With one tile in shared memory, as on a GPU that has 99 KiB of it.
ONE_STAGE = mosaic_replay.Tiles(per_block=3, stages=1)


def one_stage(*arguments):
    return mosaic_replay.replay(*arguments, tiles=ONE_STAGE)


@pytest.mark.parametrize(
    ("name", "calls"),
    [
        pytest.param("barrier_wait", (1,), id="a tile is read before it has come"),
        pytest.param("commit_smem", (4, 5), id="the state leaves before it is written"),
        pytest.param("commit_smem", (7,), id="results leave before they are written"),
        pytest.param("wait_smem_to_gmem", (0,), id="results are overwritten while they leave"),
        pytest.param("wait_smem_to_gmem", (1,), id="a tile is loaded over one that leaves"),
    ],
)
def test_a_missing_synchronisation_is_noticed_without_wgmma(name, calls):
    with gpu(WORKSTATION), planted(mosaic_replay_body, **{name: without(name, *calls)}):
        assert_noticed(one_stage)


@pytest.mark.parametrize(
    ("module", "name", "value"),
    [
        pytest.param(mosaic_parts, "TERMS", ((0, 1), (1, 0), (0, 0)), id="two bfloat16 parts instead of three"),
        pytest.param(mosaic_replay_operands, "split_decay", lambda g, rows: (g, 0 * g), id="decays are summed plainly"),
        pytest.param(
            mosaic_replay_operands, "_kept", lambda accepted: np.ones((1, 16), bool), id="rejected rows are folded"
        ),
    ],
)
def test_wrong_arithmetic_is_noticed(monkeypatch, module, name, value):
    monkeypatch.setattr(module, name, value)
    assert_noticed()
