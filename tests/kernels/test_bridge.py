"""The bridge in every implementation: one body, against float64."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.bridge import Tiles, bridge, candidate_tiles, default_tiles
from tests.kernels.bridge_cases import EPS, BridgeCase
from tests.kernels.interpreter import interpret
from tests.quick_jit import jit
from tests.tolerances import BF16_OP, FP32_OP, assert_close

pytestmark = pytest.mark.kernels
SMALL = {"hidden": 128, "code": 128, "message": 128}
# Fewer stages than steps wherever there are two steps: slots of the ring are used again.
TILES = Tiles(
    rows=0,
    step=64,
    readout_columns=128,
    readout_splits=1,
    readout_stages=1,
    message_columns=64,
    message_stages=1,
    write_columns=128,
    write_stages=1,
)


def tiles_for(case: BridgeCase, **changes: int) -> Tiles:
    """Small tiles for a case of SMALL size."""
    slots, block_rows, _ = case.x.shape
    rows = default_tiles(rows=slots * block_rows, block_rows=block_rows, hidden=128, code=128, multiprocessors=8).rows
    return Tiles(**(vars(TILES) | {"rows": rows} | changes))


def run(case: BridgeCase, implementation, tiles: Tiles | None = None):
    call = functools.partial(bridge, eps=EPS, implementation=implementation, tiles=tiles)
    if implementation != "mosaic_gpu":
        return jit(call)(*case.arguments)
    results, races = interpret(call, *case.arguments)
    assert not races
    return results


def check(case: BridgeCase, implementation, tiles: Tiles | None = None):
    x, r, c = run(case, implementation, tiles)
    assert (x.dtype, r.dtype, c.dtype) == (case.x.dtype, jnp.float32, jnp.float32)
    want_x, want_r, want_c = case.expected()
    assert_close("x", x, want_x, FP32_OP if case.x.dtype == jnp.float32 else BF16_OP)
    assert_close("r", r, want_r, FP32_OP)
    # Only XLA's form rounds the scaled row before it is read.
    rounded = implementation == "xla" and case.x.dtype != jnp.float32
    assert_close("c", c, want_c, BF16_OP if rounded else FP32_OP)
    np.testing.assert_array_equal(x[:, 0], case.x[:, 0])


@pytest.mark.parametrize(
    ("implementation", "slots", "block_rows"), [("reference", 3, 8), ("xla", 3, 8), ("mosaic_gpu", 1, 16)]
)
def test_equals_float64(implementation, slots, block_rows):
    case = BridgeCase.draw(slots, slots=slots, block_rows=block_rows, **SMALL)
    check(case, implementation, tiles_for(case) if implementation == "mosaic_gpu" else None)


@pytest.mark.parametrize(
    ("slots", "rows"),
    # One and a quarter operands of wgmma; three groups of rows.
    [(10, 80), (3, 8)],
)
def test_groups_of_rows(slots, rows):
    case = BridgeCase.draw(slots, slots=slots, block_rows=8, **SMALL)
    check(case, "mosaic_gpu", tiles_for(case, rows=rows))


def test_at_the_hidden_size_of_27b():
    case = BridgeCase.draw(7, slots=1, block_rows=8, hidden=5120, code=128, message=128)
    tiles = tiles_for(case, step=128, readout_splits=4, readout_stages=4, write_columns=256)
    check(case, "mosaic_gpu", tiles)


@pytest.mark.parametrize("implementation", ["reference", "xla"])
def test_sizes_of_no_kernel(implementation):
    check(BridgeCase.draw(8, slots=2, block_rows=7, hidden=20, code=6, message=10, dtype=jnp.float32), implementation)


@pytest.mark.parametrize("implementation", ["xla", "mosaic_gpu"])
def test_nothing_crosses_blocks(implementation):
    """Not even a NaN, and a row of zeros stays one."""
    case = BridgeCase.draw(9, slots=3, block_rows=8, **SMALL)
    tiles = tiles_for(case) if implementation == "mosaic_gpu" else None
    case = BridgeCase(case.x.at[2, 5].set(0.0), *case.arguments[1:])
    spoilt = BridgeCase(case.x.at[1].set(jnp.nan), *case.arguments[1:])
    before, after = run(case, implementation, tiles), run(spoilt, implementation, tiles)
    others = np.array([0, 2])
    for got, want in zip(after, before, strict=True):
        np.testing.assert_array_equal(got[others], want[others])
        assert bool(jnp.isfinite(want).all())
    assert not np.asarray(before[2])[2, 5].any()


def test_without_a_gpu_it_runs_as_xla():
    case = BridgeCase.draw(10, slots=1, block_rows=16, **SMALL)
    for got, want in zip(run(case, None), run(case, "xla"), strict=True):
        np.testing.assert_array_equal(got, want)
    with pytest.raises(ValueError, match="the device is no GPU"):
        bridge(*case.arguments, eps=EPS, implementation="mosaic_gpu")


def test_every_reason_is_named():
    case = BridgeCase.draw(11, slots=1, block_rows=12, hidden=192, code=128, message=128, dtype=jnp.float32)
    with pytest.raises(ValueError, match=r"x is float32.*12 rows.*the hidden size is 192") as error:
        bridge(*case.arguments, eps=EPS, implementation="mosaic_gpu")
    assert "code width" not in str(error.value)


def test_shapes_that_do_not_belong_together():
    case = BridgeCase.draw(12, slots=1, block_rows=16, **SMALL)
    x, anchor_code, readout, write, gates = case.arguments
    with pytest.raises(ValueError, match=r"readout is \(128, 64\), wanted \(128, 128\)"):
        bridge(x, anchor_code, readout[:, :64], write, gates, eps=EPS)


@pytest.mark.parametrize("rows", [16, 32, 48, 64, 80, 128, 256, 272])
def test_tiles_fit_27b(rows):
    base = default_tiles(rows=rows, block_rows=16, hidden=5120, code=1024, multiprocessors=132)
    for tiles in candidate_tiles(base, hidden=5120, code=1024, message=512):
        assert rows % tiles.rows == 0 and tiles.rows <= 128
        assert min(tiles.readout_stages, tiles.message_stages, tiles.write_stages) >= 2
    blocks = rows // base.rows * 1024 // base.readout_columns * base.readout_splits
    assert rows > 128 or 64 <= blocks <= 132
