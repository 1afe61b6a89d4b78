"""The prefill kernels' synchronisation: no race, and planted bugs that must not pass.

The second kernel's warpgroup is alone: it loads a stage again after it has read the accumulators of the products that
needed it. In the first kernel one warpgroup writes what all multiply, so its products are also read in the open.
"""

import itertools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.gated_delta import mosaic_parts, mosaic_prefill_operands, mosaic_prefill_prepare
from pallas_kernels.gated_delta import mosaic_prefill_walk as walk_module
from pallas_kernels.gated_delta.mosaic_prefill_operands import ChunkOperands, chunk_gates, pad_rows
from pallas_kernels.matrix_unit import wgmma
from tests.kernels import jax_private
from tests.kernels.gated_delta_prefill_cases import case
from tests.kernels.gated_delta_replay_cases import lost_memory
from tests.kernels.interpreter import interpret, interpreting
from tests.kernels.planted import nothing, planted
from tests.tolerances import FP32_PREFILL, assert_close, relative_rms

pytestmark = pytest.mark.kernels

# Two value heads of one key head: a block of the first kernel has two warpgroups, or one with two turns. Three chunks
# with two stages: a block of the second one loads a stage again.
CASE = case(96, seed=8, value_heads=2, key_dim=64, changes=(lost_memory,))
STAGES = 2


def prepare(warpgroups: int) -> ChunkOperands:
    q, k, _, g, beta = (pad_rows(x) for x in CASE.arguments[:5])
    return mosaic_prefill_prepare.prepare(q, k, chunk_gates(g, beta), warpgroups)


def walk(operands: ChunkOperands):
    _, _, v, g, beta, state = CASE.arguments
    return walk_module.walk(operands, chunk_gates(g, beta), v, state, STAGES)


@pytest.fixture(scope="module")
def operands() -> ChunkOperands:
    made, races = interpret(lambda: prepare(warpgroups=2))
    assert not races
    return made


def right(out) -> bool:
    """Whether outputs and state are what they must be."""
    pairs = zip(out, (CASE.o, CASE.state), strict=True)
    return all(relative_rms(got, want) <= FP32_PREFILL for got, want in pairs)


def same(made: ChunkOperands, operands: ChunkOperands) -> bool:
    """Whether the bits are the same."""
    pairs = zip(jax.tree.leaves(made), jax.tree.leaves(operands), strict=True)
    return all(np.array_equal(np.asarray(got), np.asarray(want)) for got, want in pairs)


def passes(function: Callable, is_right: Callable[..., bool]) -> bool:
    """Whether the kernel, as it is now, neither races nor fails nor gives wrong numbers."""
    try:
        out, races = interpret(function, cores=2)
    except jax.errors.JaxRuntimeError:  # the interpreter's complaint
        return False
    return not races and is_right(out)


def test_no_race_in_three_runs():
    with interpreting(cores=2):
        both = jax.jit(lambda: walk(prepare(warpgroups=1)))
        for _ in range(3):
            o, state = both()
            assert_close("output", o, CASE.o, FP32_PREFILL)
            assert_close("state", state, CASE.state, FP32_PREFILL)
        assert not jax_private.races_found()


def without(name: str, call: int) -> Callable:
    """plgpu's function, which does nothing at its numbered call while the kernel is traced."""
    count, original = itertools.count(), getattr(plgpu, name)
    return lambda *args, **kwargs: (nothing if next(count) == call else original)(*args, **kwargs)


def read_in_the_open(acc, a, b):
    """A product whose operands are also read where the interpreter looks."""
    _ = a[...], b[...]
    plgpu.commit_smem()
    plgpu.wgmma(acc, a, b)


def test_products_read_in_the_open_do_not_race(operands):
    with planted(wgmma, wgmma=read_in_the_open):
        assert passes(lambda: prepare(warpgroups=2), lambda made: same(made, operands))
        assert passes(lambda: walk(operands), right)


@pytest.mark.parametrize(
    ("module", "name", "call"),
    [
        pytest.param(mosaic_prefill_prepare, "barrier_wait", 0, id="rows are read before they have come"),
        pytest.param(mosaic_prefill_prepare, "barrier_wait", 1, id="products start before the parts are written"),
        pytest.param(mosaic_prefill_prepare, "barrier_wait", 2, id="gates are read before they have come"),
        pytest.param(mosaic_prefill_prepare, "wait_smem_to_gmem", 0, id="a mixer is overwritten while it leaves"),
        pytest.param(mosaic_prefill_prepare, "wait_smem_to_gmem", 1, id="the kernel ends before its stores"),
        pytest.param(mosaic_parts, "commit_smem", 0, id="parts leave before they are written"),
        pytest.param(mosaic_parts, "commit_smem", 1, id="a mixer leaves before it is written"),
    ],
)
def test_a_bug_in_the_first_kernel_is_noticed(operands, module, name, call):
    # Two warpgroups for what one does wrong to another, one with two turns for all else.
    warpgroups = 2 if (name, call) == ("barrier_wait", 1) else 1
    with planted(wgmma, wgmma=read_in_the_open), planted(module, **{name: without(name, call)}):
        assert not passes(lambda: prepare(warpgroups), lambda made: same(made, operands))


@pytest.mark.parametrize(
    ("module", "name", "call"),
    [
        pytest.param(walk_module, "barrier_wait", 0, id="a stage is read before it has come"),
        pytest.param(walk_module, "wait_smem_to_gmem", 0, id="outputs are overwritten while they leave"),
        pytest.param(walk_module, "wait_smem_to_gmem", 1, id="the kernel ends before its stores"),
        pytest.param(mosaic_parts, "commit_smem", 2, id="outputs leave before they are written"),
    ],
)
def test_a_bug_in_the_second_kernel_is_noticed(operands, module, name, call):
    with planted(module, **{name: without(name, call)}):
        assert not passes(lambda: walk(operands), right)


def test_two_parts_instead_of_three_are_noticed(operands, monkeypatch):
    monkeypatch.setattr(mosaic_parts, "TERMS", ((0, 1), (1, 0), (0, 0)))
    assert not passes(lambda: walk(operands), right)


def test_plainly_summed_decays_are_noticed(monkeypatch):
    monkeypatch.setattr(mosaic_prefill_operands, "split_decay", lambda g, rows: (jnp.maximum(g, -1e4), 0 * g))
    assert not passes(lambda: walk(prepare(warpgroups=2)), right)
