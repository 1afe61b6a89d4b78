"""Chunked prefill of the gated delta rule against float64, row by row, in every implementation."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.gated_delta import gated_delta_prefill
from pallas_kernels.gated_delta.mosaic_prefill import Tiles, candidate_tiles, default_tiles
from pallas_kernels.implementation import Implementation
from tests.gated_delta_oracle import draw
from tests.kernels.gated_delta_prefill_cases import Case, case, of
from tests.kernels.gated_delta_replay_cases import HARD
from tests.kernels.interpreter import interpret
from tests.quick_jit import jit
from tests.tolerances import FP32_EQUAL_KEYS, FP32_PREFILL, assert_close

pytestmark = pytest.mark.kernels

IMPLEMENTATIONS: tuple[Implementation, ...] = ("reference", "xla", "mosaic_gpu")
every_implementation = pytest.mark.parametrize("implementation", IMPLEMENTATIONS)


def run(implementation: Implementation, arguments: tuple, **options):
    prefill = functools.partial(gated_delta_prefill, implementation=implementation, **options)
    if implementation != "mosaic_gpu":
        return jit(prefill)(*arguments)
    out, races = interpret(prefill, *arguments)
    assert not races
    return out


def check(case: Case, out, bound: float = FP32_PREFILL) -> None:
    o, state = out
    assert o.dtype == state.dtype == jnp.float32
    for slot in range(o.shape[0]):
        assert_close(f"output of slot {slot}", o[slot], case.o[slot], bound)
        assert_close(f"state of slot {slot}", state[slot], case.state[slot], bound)


@every_implementation
def test_the_real_heads(implementation):
    """Three value heads of 128 x 128 for each key head, as in the 27B."""
    wanted = case(40, seed=1, key_heads=2, value_heads=6, value_dim=128)
    check(wanted, run(implementation, wanted.arguments))


@every_implementation
@pytest.mark.parametrize("rows", [1, 33])
def test_spans_that_end_anywhere(implementation, rows):
    wanted = case(rows, seed=rows, slots=2, key_dim=64)
    check(wanted, run(implementation, wanted.arguments))


@every_implementation
def test_hard_inputs(implementation):
    """A slot for each; the XLA form solves systems of nearly equal keys by powers, which costs it some digits."""
    wanted = case(64, seed=3, slots=len(HARD), changes=HARD)
    check(wanted, run(implementation, wanted.arguments), FP32_EQUAL_KEYS if implementation == "xla" else FP32_PREFILL)


@every_implementation
def test_many_chunks_do_not_drift(implementation):
    """Slow decay, so that the last state still depends on the first row."""
    inputs = draw(200, seed=4, batch=1, key_heads=1, value_heads=1, key_dim=128, value_dim=64)
    wanted = of(inputs.replace(g=1e-2 * inputs.g))
    check(wanted, run(implementation, wanted.arguments))


@every_implementation
def test_padding_rows_leave_the_state(implementation):
    """Rows with g = beta = 0 change nothing, whatever else they hold: first the rest of a chunk, then a whole one."""
    inputs = draw(64, seed=5, batch=1, key_heads=1, value_heads=1, key_dim=64, value_dim=64)
    rows = 20
    padding = np.arange(64)[None, :, None] >= rows
    hidden = inputs.replace(
        g=np.where(padding, 0, inputs.g),
        beta=np.where(padding, 0, inputs.beta),
        v=np.where(padding[..., None], 1e4, inputs.v),
    )
    wanted = of(inputs.replace(**{name: getattr(inputs, name)[:, :rows] for name in ("q", "k", "v", "g", "beta")}))
    o, state = run(implementation, (*hidden.slice(), jnp.asarray(inputs.state)))
    check(wanted, (o[:, :rows], state))
    o, again = run(implementation, (*(x[:, 32:] for x in hidden.slice()), state))
    np.testing.assert_array_equal(again, state)


@pytest.mark.parametrize("tiles", [Tiles(2, 2), Tiles(3, 1)], ids=str)
def test_every_cut_is_right(tiles):
    wanted = case(64, seed=6, value_heads=2, key_dim=64)
    check(wanted, run("mosaic_gpu", wanted.arguments, tiles=tiles))


def test_the_cut_fits_the_device():
    assert default_tiles(key_dim=128, repeat=3) == Tiles(stages=2, warpgroups=3)
    assert candidate_tiles(key_dim=128, repeat=3) == (Tiles(2, 3), Tiles(2, 1))
    assert default_tiles(key_dim=64, repeat=8) == Tiles(stages=2, warpgroups=2)


@pytest.mark.parametrize(
    ("changes", "tiles", "reason"),
    [
        ({"key_dim": 96}, None, "the key head dim is 96, wanted 64 or 128"),
        ({"value_dim": 96}, None, "the value head dim is 96, wanted a multiple of 64"),
        ({"rows": 0}, None, "there are no rows"),
        ({}, Tiles(1, 1), "stages is 1, wanted 2 or more"),
        ({}, Tiles(2, 2), "warpgroups is 2, wanted a divisor of 1"),
        ({}, Tiles(3, 1), "shared memory"),
    ],
)
def test_a_kernel_that_cannot_run_says_why(changes, tiles, reason):
    sizes = {"rows": 8, "seed": 0} | changes
    arguments = jax.eval_shape(lambda: case(**sizes).arguments)
    with pytest.raises(ValueError, match=reason):
        jax.eval_shape(functools.partial(gated_delta_prefill, implementation="mosaic_gpu", tiles=tiles), *arguments)
