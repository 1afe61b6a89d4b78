"""The projections in every implementation: one body, against float64."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.projection import Tiles, candidate_tiles, project, project_residual
from pallas_kernels.projection.tiles import STEP, WIDEST
from tests.kernels.interpreter import interpret
from tests.kernels.projection_cases import KINDS, Case, gated, normed, several
from tests.quick_jit import jit
from tests.tolerances import BF16_OP, FP32_OP, assert_close

pytestmark = pytest.mark.kernels
# Fewer stages than steps of K, several tiles, and two shares where K is shared.
TILES = {kind: Tiles(columns=64, shares=1, stages=2) for kind in ("several", "gated")}
SHARED = Tiles(columns=64, shares=2, stages=2)
SMALL = {"depth": 6 * STEP, "outputs": 128}


def run(case: Case, implementation, tiles: Tiles | None = None):
    call = functools.partial(case.function, implementation=implementation, tiles=tiles)
    if implementation != "mosaic_gpu":
        return case.results(jit(call)(*case.arguments))
    results, races = interpret(call, *case.arguments)
    assert not races
    return case.results(results)


def check(case: Case, implementation, tiles: Tiles | None = None):
    dtype = case.arguments[0].dtype
    for got, want in zip(run(case, implementation, tiles), case.expected, strict=True):
        assert got.dtype == dtype
        assert_close("result", got, want, FP32_OP if dtype == jnp.float32 else BF16_OP)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("implementation", "rows"),
    # One warpgroup that is not full; two, the second nearly empty; rows that are padded.
    [("reference", 16), ("xla", 16), ("mosaic_gpu", 16), ("mosaic_gpu", 72), ("mosaic_gpu", 3)],
)
def test_equals_float64(implementation, rows, kind):
    tiles = TILES.get(kind, SHARED) if implementation == "mosaic_gpu" else None
    check(KINDS[kind](rows, rows=rows, **SMALL), implementation, tiles)


@pytest.mark.parametrize(
    "case",
    [
        several(1, rows=16, depth=5120, outputs=(16,)),
        gated(2, rows=16, depth=5120, outputs=8),
        normed(3, rows=8, depth=640, outputs=5120),
    ],
    ids=["several", "gated", "normed"],
)
def test_at_the_hidden_size_of_27b(case):
    check(case, "mosaic_gpu", Tiles(columns=min(len(case.arguments[1]), 160), shares=1, stages=4))


@pytest.mark.parametrize("implementation", ["reference", "xla"])
@pytest.mark.parametrize("kind", KINDS)
def test_sizes_of_no_kernel(implementation, kind):
    check(KINDS[kind](4, rows=5, depth=20, outputs=14, dtype=jnp.float32), implementation)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_stay_apart(kind):
    """Not even a NaN crosses, and the sums of a row do not depend on its neighbours."""
    case = KINDS[kind](5, rows=16, **SMALL)
    x, *others = case.arguments
    spoilt = Case(case.function, (x.at[3].set(jnp.nan), *others), case.expected)
    tiles = TILES.get(kind, SHARED)
    rest = np.arange(16) != 3
    for before, after in zip(run(case, "mosaic_gpu", tiles), run(spoilt, "mosaic_gpu", tiles), strict=True):
        np.testing.assert_array_equal(np.asarray(after)[rest], np.asarray(before)[rest])
        assert bool(jnp.isnan(after[3]).all())


def test_other_dimensions_of_rows():
    case = several(6, rows=12, depth=64, outputs=(24,))
    x, weight = case.arguments
    (got,) = project(x.reshape(3, 4, -1), [weight], implementation="xla")
    assert got.shape == (3, 4, 24)
    np.testing.assert_array_equal(got.reshape(12, 24), project(x, [weight], implementation="xla")[0])


def test_without_a_gpu_it_runs_as_xla():
    for kind, make in KINDS.items():
        case = make(7, rows=16, **SMALL)
        for got, want in zip(run(case, None), run(case, "xla"), strict=True):
            np.testing.assert_array_equal(got, want)
        with pytest.raises(ValueError, match="the device is no GPU"):
            case.function(*case.arguments, implementation="mosaic_gpu", tiles=TILES.get(kind, SHARED))


def test_every_reason_is_named():
    case = KINDS["residual"](8, rows=136, depth=72, outputs=100, dtype=jnp.float32)
    with pytest.raises(ValueError, match=r"x is float32.*136 rows.*72 wide.*100 outputs.* 8;.*100 outputs.* 128;"):
        case.function(*case.arguments, implementation="mosaic_gpu")


def test_shapes_that_do_not_belong_together():
    x, weight, old = KINDS["residual"](9, rows=16, **SMALL).arguments
    with pytest.raises(ValueError, match=r"weights\[1\] is \(128, 320\), wanted \(None, 384\)"):
        project(x, [weight, weight[:, :320]])
    with pytest.raises(ValueError, match=r"residual is \(8, 128\), wanted \(16, 128\)"):
        project_residual(x, weight, old[:8])
    with pytest.raises(ValueError, match="no weight"):
        project(x, [])


@pytest.mark.parametrize("rows", [1, 16, 48, 64, 72, 128])
@pytest.mark.parametrize(
    ("kind", "outputs", "depth"),
    [
        ("several", (10240, 6144, 48, 48), 5120),
        ("several", (12288, 1024, 1024), 5120),
        ("gated", (17408,), 5120),
        ("shares", (5120,), 17408),
        ("shares", (5120,), 6144),
    ],
)
def test_tiles_fit_27b(kind, outputs, depth, rows):
    found = candidate_tiles(kind, rows=rows, outputs=outputs, depth=depth, multiprocessors=132)
    assert 2 <= len(found) <= 5
    for tiles in found:
        assert tiles.stages >= 3 and tiles.columns <= WIDEST["wgmma"][kind]
        assert depth % (tiles.shares * STEP) == 0
        assert all(size % tiles.columns == 0 for size in outputs if size >= tiles.columns)
    blocks = found[0].shares * sum(-(-size // found[0].columns) for size in outputs)
    assert 112 <= blocks <= 132
