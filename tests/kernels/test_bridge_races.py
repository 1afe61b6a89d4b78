"""Races of the bridge's kernels and of the ring they share, and planted bugs that must not pass."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.bridge import Tiles, mosaic_gpu
from pallas_kernels.matrix_unit import wgmma
from pallas_kernels.skinny_matmul import ring
from tests.kernels.bridge_cases import BridgeCase
from tests.kernels.interpreter import interpret
from tests.kernels.planted import nothing, planted
from tests.kernels.planted_outcome import late_copies, outcome
from tests.oracle_drafter import wide
from tests.tolerances import BF16_OP, FP32_OP, assert_close

pytestmark = pytest.mark.kernels
# Four steps of K through two slots, and two blocks of threads side by side where columns allow.
TILES = Tiles(
    rows=16,
    step=32,
    readout_columns=64,
    readout_splits=1,
    readout_stages=2,
    message_columns=64,
    message_stages=3,
    write_columns=64,
    write_stages=2,
)
CASE = BridgeCase.draw(0, slots=2, block_rows=8, hidden=128, code=128, message=128)
X = CASE.x.reshape(16, -1)
CODES = jnp.asarray(np.random.default_rng(1).normal(size=(16, 128)), jnp.bfloat16)
R = jnp.linspace(0.5, 3.0, 16, dtype=jnp.float32)


def _message(codes):
    g = CASE.gates
    codes, heard = wide(codes), np.roll(wide(codes), 1, axis=0)
    gate = codes @ wide(g.receiver_gate).T + heard @ wide(g.predecessor_gate).T + wide(g.gate_bias)
    m = heard @ wide(g.message).T / (1 + np.exp(-gate))
    m[::8] = 0
    return m


# Each product alone: function, arguments, what it gives in float64, and the bound.
READOUT = (
    lambda x, readout: mosaic_gpu.readout_parts(x, readout, TILES)[0],
    (X, CASE.readout),
    wide(X) @ wide(CASE.readout).T,
    FP32_OP,
)
MESSAGE = (
    lambda codes: mosaic_gpu.messages(codes, CASE.gates, block_rows=8, tiles=TILES),
    (CODES,),
    _message(CODES),
    BF16_OP,
)
WRITE = (
    lambda x, r, m: mosaic_gpu.write_rows(x, r, m, CASE.write, TILES),
    (X, R, CODES),
    wide(X) + wide(R)[:, None] * (wide(CODES) @ wide(CASE.write).T),
    BF16_OP,
)


@pytest.mark.parametrize("kernel", [READOUT, MESSAGE, WRITE], ids=["readout", "message", "write"])
def test_no_race_in_three_runs(kernel):
    function, arguments, want, bound = kernel
    for _ in range(3):
        got, races = interpret(function, *arguments)
        assert not races
        assert_close("result", got, want, bound)


def _one_arrival(*, num_arrivals: int, num_barriers: int = 1) -> Any:
    return plgpu.Barrier(num_arrivals=1 if num_arrivals > 1 else 2, num_barriers=num_barriers)


def _next_row(*args: Any, **kwargs: Any) -> Any:
    return plgpu.broadcasted_iota(*args, **kwargs) + 1


# Where, what is planted there, the kernel that shows it.
BUGS: dict[str, tuple[ModuleType, dict[str, Callable], Any]] = {
    "the loads of a step are not awaited": (ring, {"barrier_wait": nothing}, READOUT),
    "a barrier counts wrong": (mosaic_gpu, {"Barrier": _one_arrival}, READOUT),
    "results are sent before they are visible": (mosaic_gpu, {"commit_smem": nothing}, READOUT),
    "a block ends before its results are sent": (mosaic_gpu, {"wait_smem_to_gmem": nothing}, WRITE),
    "the wrong rows are anchors": (mosaic_gpu, {"broadcasted_iota": _next_row}, MESSAGE),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_shows(bug):
    module, functions, kernel = BUGS[bug]
    with planted(module, **functions):
        assert outcome(*kernel) != "right"


@pytest.mark.parametrize(("wait", "expected"), [(True, "right"), (False, "wrong numbers")])
def test_the_residual_is_awaited(wait, expected):
    with late_copies(mosaic_gpu, wait=wait):
        assert outcome(*WRITE) == expected


def test_a_slot_that_is_filled_one_step_early_shows(monkeypatch):
    early = functools.partial(ring.stream, in_flight=-1)
    monkeypatch.setattr(mosaic_gpu, "stream", early)
    with planted(wgmma, wgmma_wait=nothing):  # it refuses a negative count
        assert outcome(*READOUT) != "right"


@contextlib.contextmanager
def shadowed(*, wait: bool) -> Iterator[None]:
    """Reads the operands of unfinished products where the hardware may still read them: until they are awaited.

    The interpreter finishes a product at once. Here its operands count as in use up to the wait, and a copy that starts
    before it races. `wait=False` plants that bug.
    """
    unfinished: list[Any] = []

    def read() -> None:
        for ref in unfinished:
            _ = ref[...]
        plgpu.commit_smem()  # reads of the generic proxy, before copies by TMA

    def multiply(acc, a, b):
        unfinished.extend((a, b))
        return plgpu.wgmma(acc, a, b)

    def wait_for_products(count):
        if wait:
            read()
            unfinished.clear()
            plgpu.wgmma_wait(count)

    def copy(*args, **kwargs):
        plgpu.copy_gmem_to_smem(*args, **kwargs)
        if unfinished:
            read()

    with planted(wgmma, wgmma=multiply, wgmma_wait=wait_for_products), planted(mosaic_gpu, copy_gmem_to_smem=copy):
        yield


@pytest.mark.parametrize(("wait", "expected"), [(True, "right"), (False, "race")])
def test_operands_in_use(wait, expected):
    with shadowed(wait=wait):
        assert outcome(*READOUT) == expected
