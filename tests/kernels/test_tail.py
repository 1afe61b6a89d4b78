"""The tail's scores in every implementation: one body, against float64."""

import dataclasses
import functools

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.tail import Tiles, candidate_tiles, default_tiles, tail_scores
from tests.kernels.interpreter import interpret
from tests.kernels.tail_cases import EPS, TailCase
from tests.quick_jit import jit
from tests.tolerances import FP32_CANCELLED, FP32_OP, assert_close

pytestmark = pytest.mark.kernels
SMALL = {"hidden": 128, "code": 128, "message": 128}
# Fewer stages than steps: slots of the ring are used again.
TILES = Tiles(message_columns=64, message_stages=1, score_columns=64, score_stages=2, message_step=64, score_step=32)


def run(case: TailCase, implementation, tiles: Tiles = TILES):
    if implementation != "mosaic_gpu":
        return jit(functools.partial(tail_scores, eps=EPS, implementation=implementation))(*case.arguments)
    call = functools.partial(tail_scores, eps=EPS, implementation=implementation, tiles=tiles)
    scores, races = interpret(call, *case.arguments)
    assert not races
    return scores


@pytest.mark.parametrize(
    ("implementation", "slots", "positions"),
    # Two blocks, the last of which may be half full.
    [("reference", 2, 4), ("xla", 2, 4), ("mosaic_gpu", 2, 3)],
)
def test_equals_float64(implementation, slots, positions):
    case = TailCase.draw(positions, slots=slots, positions=positions, **SMALL)
    got = run(case, implementation)
    assert got.dtype == jnp.float32
    assert_close("scores", got, case.expected(), FP32_OP)


def test_at_the_widths_of_27b():
    """The lengths of its sums over K; the hidden size is only the number of slices."""
    case = TailCase.draw(20, slots=1, positions=2, hidden=128, code=1024, message=512)
    tiles = Tiles(
        message_columns=128, message_stages=3, score_columns=128, score_stages=4, message_step=128, score_step=64
    )
    assert_close("scores", run(case, "mosaic_gpu", tiles), case.expected(), FP32_OP)


@pytest.mark.parametrize("implementation", ["reference", "xla"])
def test_sizes_of_no_kernel(implementation):
    case = TailCase.draw(21, slots=2, positions=3, hidden=20, code=6, message=10, choices=5, dtype=jnp.float32)
    assert_close("scores", run(case, implementation), case.expected(), FP32_OP)


@pytest.mark.parametrize("implementation", ["reference", "xla", "mosaic_gpu"])
def test_a_message_that_cancels_the_residual(implementation):
    """What is left of y is a hundredth of its terms: there direct scores stand where expanded ones fail."""
    case = TailCase.draw(22, slots=1, positions=2, **SMALL).cancelled(0.99)
    want = case.expected()
    got = run(case, implementation)
    assert_close("cancelled", got[:, :, 0], want[:, :, 0], FP32_CANCELLED)
    assert_close("others", got[:, :, 1:], want[:, :, 1:], FP32_OP)


@pytest.mark.parametrize("implementation", ["xla", "mosaic_gpu"])
def test_equal_candidates_have_equal_scores(implementation):
    """Bit for bit, so that the order of candidates decides; and no NaN leaves its position.

    In sums that are exact: a CPU's products may add the columns of a matrix in different orders, a GPU's do not.
    """
    case = TailCase.draw_whole(23, slots=1, positions=4, hidden=128, message=128)
    head = case.head.at[:, :, 9].set(case.head[:, :, 2])
    predecessor = case.predecessor.at[:, :, 11].set(case.predecessor[:, :, 3])
    case = dataclasses.replace(case, head=head, predecessor=predecessor, x=case.x.at[0, 1].set(jnp.nan))
    got = np.asarray(run(case, implementation))
    others = got[:, [0, 2, 3]]
    assert_close("scores", others, case.expected()[:, [0, 2, 3]], FP32_OP)
    assert np.isfinite(others).all() and np.isnan(got[:, 1]).all()
    np.testing.assert_array_equal(others[..., 9], others[..., 2])
    np.testing.assert_array_equal(others[:, :, 11], others[:, :, 3])


def test_without_a_gpu_it_runs_as_xla():
    case = TailCase.draw(24, slots=1, positions=2, **SMALL)
    np.testing.assert_array_equal(run(case, None), run(case, "xla"))
    with pytest.raises(ValueError, match="the device is no GPU"):
        tail_scores(*case.arguments, eps=EPS, implementation="mosaic_gpu")


def test_every_reason_is_named():
    case = TailCase.draw(25, slots=1, positions=2, hidden=192, code=128, message=128, choices=8, dtype=jnp.float32)
    with pytest.raises(ValueError, match=r"x is float32.*8 predecessors.*8 receivers.*the hidden size is 192"):
        tail_scores(*case.arguments, eps=EPS, implementation="mosaic_gpu")


def test_shapes_that_do_not_belong_together():
    case = TailCase.draw(26, slots=1, positions=2, **SMALL)
    with pytest.raises(ValueError, match=r"magnitude is \(1, 2\), wanted \(1, 2, 1\)"):
        tail_scores(*dataclasses.replace(case, magnitude=case.magnitude[..., 0]).arguments, eps=EPS)


@pytest.mark.parametrize("slots", [1, 2, 4, 8, 16])
def test_tiles_fit_27b(slots):
    base = default_tiles(positions=15 * slots, hidden=5120, message=512, multiprocessors=132)
    for tiles in candidate_tiles(base, hidden=5120, message=512):
        assert min(tiles.message_stages, tiles.score_stages) >= 2


def test_slices_that_no_wide_swizzle_divides():
    case = TailCase.draw(27, slots=1, positions=2, hidden=640, code=128, message=128)
    tiles = dataclasses.replace(TILES, message_columns=128, score_columns=160, score_stages=3)
    assert_close("scores", run(case, "mosaic_gpu", tiles), case.expected(), FP32_OP)
