"""Deferred folding: any accepted prefix of a block's records gives the state after that many tokens."""

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.gated_delta import Records, fold_records, gated_delta_replay
from tests.gated_delta_oracle import Inputs, draw, recurrence
from tests.quick_jit import jit
from tests.tolerances import FP32_OP, assert_close

BLOCK = 16

fold = jit(fold_records)
replay = jit(gated_delta_replay)


def nothing_recorded(inputs: Inputs) -> Records:
    batch, _, key_heads, key_dim = inputs.k.shape
    _, _, value_heads, value_dim = inputs.v.shape
    return Records(
        k=jnp.zeros((batch, BLOCK, key_heads, key_dim)),
        d=jnp.zeros((batch, value_heads, value_dim, BLOCK)),
        g=jnp.zeros((batch, BLOCK, value_heads)),
    )


def read_block(inputs: Inputs):
    none = jnp.zeros(inputs.v.shape[0], jnp.int32)
    return replay(jnp.asarray(inputs.state), nothing_recorded(inputs), none, *inputs.slice(0, BLOCK))


def test_block_output_equals_the_recurrence_and_the_state_waits():
    inputs = draw(BLOCK, seed=1)
    o, state, _ = read_block(inputs)
    assert_close("output", o, recurrence(inputs)[0], FP32_OP)
    np.testing.assert_array_equal(state, inputs.state)


@pytest.mark.parametrize("accepted", range(1, BLOCK + 1))
def test_folded_prefix_equals_that_many_tokens(accepted):
    inputs = draw(BLOCK, seed=2)
    _, state, records = read_block(inputs)
    folded = fold(state, records, jnp.full(2, accepted, jnp.int32))
    assert folded.dtype == jnp.float32
    assert_close("state", folded, recurrence(inputs, accepted)[1], FP32_OP)


def test_each_slot_has_its_own_count():
    inputs = draw(BLOCK, seed=3)
    _, state, records = read_block(inputs)
    folded = fold(state, records, jnp.asarray([0, 11], jnp.int32))
    np.testing.assert_array_equal(folded[0], inputs.state[0])
    assert_close("state", folded[1], recurrence(inputs, 11)[1][1], FP32_OP)


def test_folding_nothing_is_bit_exact():
    """Also with a negative zero and a denormal, which arithmetic would not preserve."""
    inputs = draw(BLOCK, seed=4)
    state = inputs.state.copy()
    state.flat[:2] = -0.0, 1e-42
    _, _, records = read_block(inputs)
    folded = fold(jnp.asarray(state), records, jnp.zeros(2, jnp.int32))
    np.testing.assert_array_equal(np.asarray(folded).view(np.int32), state.view(np.int32))


@pytest.mark.parametrize("accepted", [0, 1, 7, 15])
def test_rejected_rows_may_hold_anything(accepted):
    inputs = draw(BLOCK, seed=5)
    _, state, records = read_block(inputs)
    clean = fold(state, records, jnp.full(2, accepted, jnp.int32))
    poisoned = Records(
        k=records.k.at[:, accepted:].set(jnp.nan),
        d=records.d.at[..., accepted:].set(jnp.nan),
        g=records.g.at[:, accepted:].set(jnp.nan),
    )
    np.testing.assert_array_equal(fold(state, poisoned, jnp.full(2, accepted, jnp.int32)), clean)


def test_six_cycles_in_a_row():
    """Blocks whose rejected tails are read again, as decoding does; the slots accept different numbers."""
    counts = np.array([[16, 0, 3, 9, 1, 16], [2, 16, 0, 7, 15, 5]])
    inputs = draw(64, seed=6)
    state, records = jnp.asarray(inputs.state), nothing_recorded(inputs)
    pending, start = np.zeros(2, np.int32), np.zeros(2, np.int32)
    want_o, _ = recurrence(inputs)
    for accepted in counts.T.astype(np.int32):
        rows = [jnp.asarray(np.stack([x[b, s : s + BLOCK] for b, s in enumerate(start)])) for x in inputs.rows]
        o, state, records = replay(state, records, jnp.asarray(pending), *rows)
        for slot in range(2):
            here = slice(start[slot], start[slot] + BLOCK)
            assert_close("output", o[slot], want_o[slot, here], FP32_OP)
        pending, start = accepted, start + accepted
    state = fold(state, records, jnp.asarray(pending))
    for slot in range(2):
        assert_close("state", state[slot], recurrence(inputs, int(start[slot]))[1][slot], FP32_OP)


def test_shorter_block_than_the_records():
    """A block of 5 rows after one of 16: the fold reads the old width, the new records have the new one."""
    inputs = draw(BLOCK + 5, seed=7)
    _, state, records = read_block(inputs)
    o, state, short = replay(state, records, jnp.full(2, BLOCK, jnp.int32), *inputs.slice(BLOCK, BLOCK + 5))
    assert short.g.shape[1] == 5
    assert_close("output", o, recurrence(inputs)[0][:, BLOCK:], FP32_OP)
    assert_close("state", fold(state, short, jnp.full(2, 5, jnp.int32)), recurrence(inputs)[1], FP32_OP)
