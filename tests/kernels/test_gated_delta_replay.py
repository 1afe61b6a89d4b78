"""Fold and read of the gated delta rule against float64, row by row, in every implementation."""

import contextlib
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.gated_delta import Records, gated_delta_replay
from pallas_kernels.gated_delta.mosaic_replay import candidate_tiles, default_tiles
from pallas_kernels.implementation import Implementation
from tests.gated_delta_oracle import draw
from tests.kernels.gated_delta_replay_cases import HARD, Case, case, cut, fold, odd_zeros, tokens, unchanged
from tests.kernels.interpreter import interpret, interpreting
from tests.quick_jit import jit
from tests.tolerances import FP32_EQUAL_KEYS, FP32_REPLAY, assert_close

pytestmark = pytest.mark.kernels

IMPLEMENTATIONS: tuple[Implementation, ...] = ("reference", "xla", "mosaic_gpu")
every_implementation = pytest.mark.parametrize("implementation", IMPLEMENTATIONS)


def run(implementation: Implementation, arguments: tuple, cores: int = 4, **options):
    """Outputs, state and records."""
    replay = functools.partial(gated_delta_replay, implementation=implementation, **options)
    if implementation != "mosaic_gpu":
        return jit(replay)(*arguments)
    out, races = interpret(replay, *arguments, cores=cores)
    assert not races
    return out


def check(case: Case, out, bound: float = FP32_REPLAY) -> None:
    o, state, records = out
    assert o.dtype == state.dtype == records.d.dtype == jnp.float32
    for slot in range(o.shape[0]):
        assert_close(f"output of slot {slot}", o[slot], case.o[slot], bound)
        assert_close(f"state of slot {slot}", state[slot], case.state[slot], bound)
        assert_close(f"deltas of slot {slot}", records.d[slot], case.d[slot], bound)
    k, g = case.arguments[4], case.arguments[6]
    np.testing.assert_array_equal(records.k, k)
    np.testing.assert_array_equal(records.g, g)


@every_implementation
def test_the_real_heads(implementation):
    """Three value heads of 128 x 128 for each key head, as in the 27B; the slots accepted nothing, some and all.

    The bits of an untouched state stay, also of a negative zero and a denormal, which arithmetic would not preserve.
    """
    wanted = case((0, 7, 16), seed=1, key_heads=2, value_heads=6, changes=(odd_zeros, unchanged, unchanged))
    out = run(implementation, wanted.arguments, cores=8)
    check(wanted, out)
    before, after = (np.asarray(state[0]).view(np.int32) for state in (wanted.arguments[0], out[1]))
    np.testing.assert_array_equal(after, before)


@every_implementation
@pytest.mark.parametrize(("rows", "recorded", "accepted"), [(1, 3, 2), (5, 16, 3)])
def test_narrow_blocks_and_records(implementation, rows, recorded, accepted):
    wanted = case((accepted,), seed=2, rows=rows, recorded=recorded, value_heads=1, value_dim=64)
    out = run(implementation, wanted.arguments)
    check(wanted, out)
    assert out[2].d.shape == (1, 1, 64, rows)


@every_implementation
def test_hard_inputs(implementation):
    """A slot for each; the XLA form solves systems of nearly equal keys by powers, which costs it some digits."""
    wanted = case((16, 5, 9, 16, 12), seed=3, value_heads=1, value_dim=64, changes=HARD)
    check(wanted, run(implementation, wanted.arguments), FP32_EQUAL_KEYS if implementation == "xla" else FP32_REPLAY)


@every_implementation
def test_cycles_on_its_own_records_and_states(implementation):
    inputs = draw(64, seed=5, batch=2, key_heads=1, value_heads=1, key_dim=128, value_dim=64)
    state, want_state = jnp.asarray(inputs.state), inputs.state.astype(np.float64)
    records = Records(k=jnp.zeros((2, 16, 1, 128)), d=jnp.zeros((2, 1, 64, 16)), g=jnp.zeros((2, 16, 1)))
    pending = np.zeros(2, np.int32)
    replay = jit(functools.partial(gated_delta_replay, implementation=implementation))
    with interpreting() if implementation == "mosaic_gpu" else contextlib.nullcontext():
        for start, accepted in ((0, (16, 3)), (16, (0, 11)), (32, (5, 16)), (48, (1, 0))):
            block = cut(inputs, start, start + 16)
            want_o, _, want_d = tokens(block, want_state)
            o, state, records = replay(state, records, jnp.asarray(pending), *block.slice())
            assert_close("output", o, want_o, FP32_REPLAY)
            assert_close("state", state, want_state, FP32_REPLAY)
            want_state = fold(want_state, block, want_d, accepted)
            pending = np.asarray(accepted, np.int32)


def test_the_cut_fills_the_device():
    """One tile per block for one slot, a whole key head per block for eight; always a divisor of its six tiles."""
    heads = {"value_heads": 48, "key_heads": 16, "value_dim": 128}
    chosen = [default_tiles(slots, **heads, sms=132) for slots in (1, 2, 4, 8)]
    assert [tiles.per_block for tiles in chosen] == [1, 2, 3, 6]
    assert [tiles.per_block for tiles in candidate_tiles(**heads)] == [1, 2, 3, 6]
    assert all(tiles.stages == min(tiles.per_block, 2) for tiles in chosen)


def test_bfloat16_rows_are_read_as_float32():
    state, records, accepted, *rows = case((2,), seed=7, value_heads=1, value_dim=64).arguments
    narrow = [x.astype(jnp.bfloat16) for x in rows]
    o, _, _ = run("xla", (state, records, accepted, *narrow))
    wide, _, _ = run("xla", (state, records, accepted, *(x.astype(jnp.float32) for x in narrow)))
    assert o.dtype == jnp.float32
    np.testing.assert_array_equal(o, wide)


def abstract(**changes: Any):
    """Shapes of one slot at the smallest size, with changes."""
    sizes: dict[str, Any] = {"value_heads": 1, "value_dim": 64} | changes
    return jax.eval_shape(lambda: case((0,), seed=0, **sizes).arguments)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"rows": 17}, "rows of the block are 17, wanted 1 to 16"),
        ({"recorded": 17}, "rows of the records are 17, wanted 1 to 16"),
        ({"value_dim": 96}, "the value head dim is 96, wanted a multiple of 64"),
        ({"key_dim": 64}, "the key head dim is 64, wanted 128"),
        ({"value_heads": 256}, "256 value heads per key head take"),
    ],
)
def test_a_kernel_that_cannot_run_says_why(changes, reason):
    with pytest.raises(ValueError, match=reason):
        jax.eval_shape(functools.partial(gated_delta_replay, implementation="mosaic_gpu"), *abstract(**changes))


@pytest.mark.parametrize(
    ("index", "shape", "message"),
    [
        (3, (1, 16, 1, 64), r"q is \(1, 16, 1, 64\), wanted \(1, 16, 1, 128\)"),
        (2, (2,), r"accepted is \(2,\), wanted \(1,\)"),
        (4, (1, 16, 2, 128), "1 value heads and 2 key heads, wanted a multiple"),
    ],
)
def test_shapes_that_do_not_fit(index, shape, message):
    arguments = list(abstract())
    arguments[index] = jax.ShapeDtypeStruct(shape, arguments[index].dtype)
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(gated_delta_replay, *arguments)


def test_a_narrow_state_is_refused():
    state, *rest = abstract()
    with pytest.raises(ValueError, match="the state is bfloat16, wanted float32"):
        jax.eval_shape(gated_delta_replay, state.update(dtype=jnp.bfloat16), *rest)
