"""Block attention's barriers and fences: no race as written, and a planted bug is noticed."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.block_attention import (
    Tiles,
    api,
    combine,
    context,
    layout,
    mosaic_gpu,
    paged_block_attention,
    ring_block_attention,
)
from pallas_kernels.block_attention.layout import UNSEEN
from pallas_kernels.block_attention.tiles import Geometry
from tests.kernels.block_attention_cases import Sizes, gate_case, paged_case, ring_case
from tests.kernels.interpreter import interpret
from tests.kernels.planted import nothing, planted, shadow_reads
from tests.kernels.planted_outcome import late_copies
from tests.tolerances import BF16_ATTENTION, relative_rms

pytestmark = pytest.mark.kernels

# Two consumers and three tiles in two stages.
PAGED = Sizes(before=(130,), rows=16, heads=8, kv_heads=1, head_dim=64)
# One consumer, three tiles around the end of the ring and one of the block in two stages.
RING = Sizes(before=(200,), rows=16, heads=4, kv_heads=1, head_dim=64)


def run_paged():
    operands, expected = paged_case(5, PAGED, page=64, pages=3, dtype=jnp.bfloat16)
    tiles = Tiles(splits=1, stages=2, accumulate="fresh")
    function = functools.partial(paged_block_attention, implementation="mosaic_gpu", tiles=tiles)
    return *interpret(function, *operands), expected


def run_ring():
    operands, expected = ring_case(6, RING, ring=152, window=134, causal=True, dtype=jnp.bfloat16)
    tiles = Tiles(splits=1, stages=2, accumulate="fresh")
    function = functools.partial(ring_block_attention, implementation="mosaic_gpu", tiles=tiles)
    return *interpret(functools.partial(function, window=134, causal=True), *operands), expected


def run_combine():
    """Five parts and two stages; the third part saw nothing in some rows; a gate."""
    rng = np.random.default_rng(7)
    parts = rng.standard_normal((5, 1, 1, 1, 64, 64)).astype(jnp.bfloat16)
    normalisers = rng.standard_normal((5, 1, 1, 1, 64)).astype(np.float32) * 4
    parts[2, ..., :9, :], normalisers[2, ..., :9] = 0, UNSEEN
    shares = np.exp2(normalisers.astype(np.float64))
    expected = (parts * shares[..., None]).sum(0) / shares.sum(0)[..., None]
    expected = expected.reshape(1, 4, 16, 64).swapaxes(1, 2)  # [B, T, N, D]
    gate, expected = gate_case(8, expected, jnp.bfloat16)
    function = functools.partial(combine.combine, geometry=Geometry.of(16, 4, 64), stages=2)
    return *interpret(function, jnp.asarray(parts), jnp.asarray(normalisers), gate), expected


@pytest.fixture(autouse=True)
def traced_anew(monkeypatch):
    """A jitted function would be run as it was traced before a bug was planted in what it calls."""
    for name in ("paged_block_attention_mosaic_gpu", "ring_block_attention_mosaic_gpu"):
        monkeypatch.setattr(api, name, getattr(api, name).__wrapped__)


RUNS = {"paged": run_paged, "ring": run_ring, "combine": run_combine}


@pytest.mark.parametrize("run", RUNS)
def test_no_race(run):
    for _ in range(3):  # a race may depend on the order in which threads happen to run
        assert not noticed(RUNS[run])


@pytest.mark.parametrize("run", ["paged", "ring"])
def test_no_race_with_what_wgmma_reads(run):
    with shadow_reads(mosaic_gpu):
        assert not noticed(RUNS[run])


def noticed(run):
    """What is wrong with a run."""
    try:
        got, races, expected = run()
    except jax.errors.JaxRuntimeError as error:  # how the interpreter reports an unattended barrier or copy
        return f"{type(error).__name__}: {error}"
    if races:
        return "race"
    error = relative_rms(got, expected)
    return None if error <= BF16_ATTENTION else f"relative rms {error:.3g}"


class Barriers:
    """Names of the barriers that the kernel is traced with, by their place in `Shared`."""

    def __init__(self, monkeypatch):
        outer = self

        class Recorded(mosaic_gpu.Shared):
            def __init__(self, **scratch):
                super().__init__(**scratch)
                if not hasattr(self.q_full, "ref"):  # not a consumer's part of it
                    outer.shared = self

        self.shared: Any = None
        monkeypatch.setattr(mosaic_gpu, "Shared", Recorded)

    def name(self, barrier):
        return next(name for name, ref in vars(self.shared).items() if ref is barrier.ref)

    def without(self, function, name):
        """`function` of plgpu, left out for one of the barriers."""
        original = getattr(plgpu, function)
        return {function: lambda barrier: None if self.name(barrier) == name else original(barrier)}

    def early(self, operand):
        """The operand is released as soon as it has arrived instead of after the product."""

        def wait(barrier):
            plgpu.barrier_wait(barrier)
            if self.name(barrier) == f"{operand}_full":
                empty = getattr(self.shared, f"{operand}_empty")
                plgpu.barrier_arrive(dataclasses.replace(barrier, ref=empty))

        return {"barrier_wait": wait, **self.without("barrier_arrive", f"{operand}_empty")}


@pytest.mark.parametrize("barrier", ["q_full", "k_full", "v_full", "k_empty", "v_empty"])
def test_a_barrier_that_is_not_awaited_is_noticed(monkeypatch, barrier):
    with shadow_reads(mosaic_gpu, **Barriers(monkeypatch).without("barrier_wait", barrier)):
        assert noticed(run_ring)


@pytest.mark.parametrize("wait", [True, False])
def test_the_gate_is_awaited(wait):
    with late_copies(combine, layout, wait=wait):
        assert bool(noticed(run_combine)) != wait


@pytest.mark.parametrize("operand", ["k", "v"])
def test_an_operand_released_before_its_product_is_noticed(monkeypatch, operand):
    with shadow_reads(mosaic_gpu, **Barriers(monkeypatch).early(operand)):
        assert noticed(run_ring) == "race"


@pytest.mark.parametrize("function", ["commit_smem", "wait_smem_to_gmem"])
@pytest.mark.parametrize(("module", "run"), [(mosaic_gpu, run_ring), (combine, run_combine)])
def test_a_missing_fence_is_noticed(module, run, function):
    with planted(module, **{function: nothing}):
        assert noticed(run)


def test_a_wrong_mask_or_tile_count_is_noticed(monkeypatch):
    visible = context.RingContext.visible
    wrong = {
        "visible": lambda self, index, row, column: visible(self, index, row + 1, column),
        "count": property(lambda self: self.ring_count),
    }
    for name, value in wrong.items():
        with monkeypatch.context() as patch:
            patch.setattr(context.RingContext, name, value)
            assert noticed(run_ring)
