"""Block attention: every implementation against float64, at odd sizes and at the 27B pair's with few heads."""

import dataclasses
import functools
import itertools
import re

import jax
import jax.numpy as jnp
import pytest

from pallas_kernels.block_attention import (
    Tiles,
    candidate_tiles,
    default_tiles,
    paged_block_attention,
    ring_block_attention,
)
from pallas_kernels.block_attention.long_context import paged_attention_in_steps
from pallas_kernels.block_attention.tiles import Geometry
from tests.kernels.block_attention_cases import GARBAGE, RUN, Sizes, gate_case, paged_case, ring_case
from tests.kernels.interpreter import interpret, interpreting
from tests.tolerances import BF16_ATTENTION, FP32_OP, assert_close

pytestmark = pytest.mark.kernels
FORMS = (("reference", jnp.float32), ("xla", jnp.float32), ("xla", jnp.bfloat16), ("mosaic_gpu", jnp.bfloat16))

TARGET = Sizes(before=(120, 0), rows=16, heads=6, kv_heads=1, head_dim=256)
DRAFTER = Sizes(before=(0, 1000), rows=16, heads=4, kv_heads=1, head_dim=128)
ODD = Sizes(before=(1, 187), rows=5, heads=6, kv_heads=2, head_dim=64)
PAGED = {
    "target": (TARGET, {"page": 64, "pages": 3}, Tiles(splits=2)),
    # Three tiles in one page, full to the last row; more splits than tiles.
    "odd": (ODD, {"page": 192, "pages": 1}, Tiles(splits=2, stages=1)),
}
RING = {
    "drafter": (DRAFTER, {"ring": 144, "window": 128, "causal": True}, Tiles(splits=2)),
    "short-window": (ODD, {"ring": 72, "window": 9, "causal": True}, Tiles(splits=1)),
    "no-window": (ODD, {"ring": 200, "window": None, "causal": False}, Tiles(splits=1, stages=3)),
    "overwritten": (ODD, {"ring": 72, "window": None, "causal": False}, Tiles(splits=1, keys=128)),
}


@pytest.mark.parametrize("case", PAGED)
@pytest.mark.parametrize(("implementation", "dtype"), FORMS)
def test_paged(implementation, dtype, case):
    sizes, pages, tiles = PAGED[case]
    check(paged_block_attention, functools.partial(paged_case, 1, sizes, **pages), implementation, dtype, tiles)


@pytest.mark.parametrize("case", RING)
@pytest.mark.parametrize(("implementation", "dtype"), FORMS)
def test_ring(implementation, dtype, case):
    sizes, ring, tiles = RING[case]
    function = functools.partial(ring_block_attention, window=ring["window"], causal=ring["causal"])
    check(function, functools.partial(ring_case, 2, sizes, **ring), implementation, dtype, tiles)


@pytest.mark.parametrize("case", PAGED)
@pytest.mark.parametrize(("implementation", "dtype", "splits"), [*[(*form, 1) for form in FORMS], (*FORMS[-1], 2)])
def test_gated(implementation, dtype, splits, case):
    """With parts to join and without."""
    sizes, pages, tiles = PAGED[case]
    operands, expected = paged_case(1, sizes, **pages, dtype=dtype)
    gate, expected = gate_case(2, expected, dtype)

    def attend(*operands, **options):
        return paged_block_attention(*operands[:-1], gate=operands[-1], **options)

    tiles = dataclasses.replace(tiles, splits=splits)
    check(attend, lambda **_: ((*operands, gate), expected), implementation, dtype, tiles)


@pytest.mark.parametrize("positions", [64, 128, 500])
def test_a_long_context_in_steps(positions):
    """Steps of one page, of two, and one that is longer than the table; chunks of many rows as well."""
    sizes = dataclasses.replace(TARGET, before=(120, 0, 240), rows=40)
    operands, expected = paged_case(3, sizes, page=64, pages=5, dtype=jnp.float32)
    got = jax.jit(functools.partial(paged_attention_in_steps, positions=positions))(*operands)
    assert_close("output", got, expected, FP32_OP)


def check(function, case, implementation, dtype, tiles):
    function = functools.partial(function, implementation=implementation)
    if implementation == "mosaic_gpu":
        # The kernel does not read what no row sees, a whole tile at a time: NaN there must not matter.
        operands, expected = case(dtype=dtype, unread=float("nan") if tiles.keys == RUN else GARBAGE)
        tiles = dataclasses.replace(tiles, accumulate="fresh")
        got, races = interpret(functools.partial(function, tiles=tiles), *operands)
        assert not races
    else:
        operands, expected = case(dtype=dtype)
        got = jax.jit(function)(*operands)
    assert got.dtype == dtype
    assert_close("output", got, expected, FP32_OP if dtype == jnp.float32 else BF16_ATTENTION)


def test_default_and_candidate_tiles_fit():
    for rows, groups, dim, slots, kv_heads in itertools.product(
        (1, 16), (1, 6, 8), (64, 128, 192, 256), (1, 8), (4, 8)
    ):
        geometry = Geometry.of(rows, groups, dim)
        assert not geometry.obstacles()
        candidates = candidate_tiles(geometry, slots=slots, kv_heads=kv_heads, sms=132)
        assert candidates[0] == default_tiles(geometry, slots=slots, kv_heads=kv_heads, sms=132)
        for tiles in candidates:
            assert not tiles.obstacles(geometry)


def operands(*, rows=4, heads=2, kv_heads=1, dim=64, page=64, dtype=jnp.bfloat16):
    q = jnp.zeros((1, rows, heads, dim), dtype)
    pages = jnp.zeros((2, page, kv_heads, dim), dtype)
    return q, pages, pages, jnp.zeros((1, 2), jnp.int32), jnp.zeros((1,), jnp.int32)


@pytest.mark.parametrize(
    ("sizes", "tiles", "reason"),
    [
        ({"dtype": jnp.float32}, None, "the operands are ['float32'], wanted bfloat16"),
        ({"dim": 96}, None, "the head size is 96, wanted 64, 128, 192 or 256"),
        ({"rows": 17}, None, "there are 17 new rows per slot, wanted at most 16"),
        ({"rows": 16, "heads": 9}, None, "9 query heads share a key/value head, wanted at most 8"),
        ({"page": 48}, None, "a page has 48 positions, wanted a multiple of 64"),
        ({}, Tiles(splits=1, keys=128), "a page has 64 positions, wanted a multiple of 128"),
        ({}, Tiles(splits=0), "tiles have 0 splits and 2 stages, wanted at least one of each"),
        ({}, Tiles(splits=1, keys=32), "tiles have 32 keys, wanted a multiple of 64 up to 128"),
        ({}, Tiles(splits=1, stages=20), "tiles need 337152 bytes of shared memory, wanted at most 232448"),
    ],
)
def test_what_the_kernel_cannot_do_is_said(sizes, tiles, reason):
    with interpreting(), pytest.raises(ValueError, match=re.escape(reason)):
        paged_block_attention(*operands(**sizes), implementation="mosaic_gpu", tiles=tiles)


def test_a_ring_of_broken_tiles_is_refused():
    q, *_, length = operands()
    ring, block = jnp.zeros((1, 70, 1, 64), q.dtype), q[:, :, :1]
    with interpreting(), pytest.raises(ValueError, match="the ring has 70 rows, wanted a multiple of 8"):
        ring_block_attention(q, ring, ring, block, block, length, window=8, causal=True, implementation="mosaic_gpu")


def test_shapes_that_do_not_fit_together_are_refused():
    q, k, v, table, start = operands()
    with pytest.raises(ValueError, match="N a multiple of K"):
        paged_block_attention(q, k, v[:, :, :, :32], table, start)
    with pytest.raises(ValueError, match=r"start has shape \(2,\), wanted one number per slot: \(1,\)"):
        paged_block_attention(q, k, v, table, jnp.zeros((2,), jnp.int32))
    with pytest.raises(ValueError, match=r"gate has shape \(1, 4, 2, 63\), wanted \(1, 4, 2\) heads of at least 64"):
        paged_block_attention(q, k, v, table, start, gate=q[..., 1:])
    with pytest.raises(ValueError, match="wanted one row of pages per slot: 1"):
        paged_block_attention(q, k, v, table[0], start)
    block = q[:, :, :1]
    with pytest.raises(ValueError, match="ring_k and block_k have shapes"):
        ring_block_attention(q, block, block, block[:, :2], block[:, :2], start, window=8, causal=True)
    with pytest.raises(ValueError, match="window is 0, wanted at least 1"):
        ring_block_attention(q, block, block, block, block, start, window=0, causal=True)
