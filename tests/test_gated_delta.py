"""Chunked prefill of the gated delta rule against the recurrence in float64."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.gated_delta import gated_delta_prefill, gated_delta_recurrent
from tests.gated_delta_oracle import Inputs, draw, recurrence
from tests.quick_jit import jit
from tests.tolerances import FP32_EQUAL_KEYS, FP32_OP, assert_close

LENGTHS = (1, 2, 3, 15, 16, 17, 63, 64, 65, 127, 130)

prefill = jit(gated_delta_prefill, static_argnames="chunk")


def check(inputs: Inputs, chunk: int, bound: float = FP32_OP) -> None:
    o, state = prefill(*inputs.slice(), jnp.asarray(inputs.state), chunk=chunk)
    want_o, want_state = recurrence(inputs)
    assert o.dtype == state.dtype == jnp.float32
    assert_close("output", o, want_o, bound)
    assert_close("state", state, want_state, bound)


@pytest.mark.parametrize("rows", LENGTHS)
def test_prefill_equals_the_recurrence(rows):
    check(draw(rows, seed=rows), chunk=64)


@pytest.mark.parametrize(("rows", "chunk"), [(17, 1), (17, 3), (65, 16), (65, 48), (130, 128)])
def test_chunk_length_does_not_matter(rows, chunk):
    check(draw(rows, seed=rows), chunk)


def test_reference_form_equals_the_recurrence():
    inputs = draw(17, seed=5)
    o, state = jit(gated_delta_recurrent)(*inputs.slice(), jnp.asarray(inputs.state))
    want_o, want_state = recurrence(inputs)
    assert_close("output", o, want_o, FP32_OP)
    assert_close("state", state, want_state, FP32_OP)


def equal_keys(inputs: Inputs) -> Inputs:
    """The worst system to solve: every row overwrites the same entry and nothing decays."""
    return inputs.replace(
        k=np.broadcast_to(inputs.k[:, :1], inputs.k.shape),
        beta=np.ones_like(inputs.beta),
        g=np.zeros_like(inputs.g),
    )


def steep_decay(inputs: Inputs) -> Inputs:
    """Log decays down to -40: exponentials over- or underflow unless differences are taken first."""
    return inputs.replace(g=-40 * np.random.default_rng(0).random(inputs.g.shape))


def large_state(inputs: Inputs) -> Inputs:
    return inputs.replace(state=10 * inputs.state)


def similar_keys(inputs: Inputs) -> Inputs:
    k = inputs.k[:, :1] + 0.1 * inputs.k
    return inputs.replace(k=k / np.linalg.norm(k, axis=-1, keepdims=True), g=0.01 * inputs.g)


@pytest.mark.parametrize(
    ("hard", "bound"),
    [
        (equal_keys, FP32_EQUAL_KEYS),
        (similar_keys, FP32_EQUAL_KEYS),
        (steep_decay, FP32_OP),
        (large_state, FP32_OP),
    ],
)
def test_hard_inputs(hard, bound):
    check(hard(draw(130, seed=9)), chunk=64, bound=bound)


@pytest.mark.parametrize("rows", [3, 63, 65])
def test_padding_rows_leave_the_state(rows):
    """Rows with g = beta = 0 change nothing, whatever else they hold and however many there are."""
    inputs = draw(130, seed=rows)
    padding = np.arange(130)[None, :, None] >= rows
    hidden = inputs.replace(
        g=np.where(padding, 0, inputs.g),
        beta=np.where(padding, 0, inputs.beta),
        v=np.where(padding[..., None], 1e4, inputs.v),
    )
    o, state = prefill(*hidden.slice(), jnp.asarray(inputs.state), chunk=64)
    want_o, want_state = recurrence(inputs, rows)
    assert_close("output", o[:, :rows], want_o, FP32_OP)
    assert_close("state", state, want_state, FP32_OP)


def feed(inputs: Inputs, span: int, store=lambda state: state):
    state = jnp.asarray(inputs.state)
    for start in range(0, 32, span):
        _, state = prefill(*inputs.slice(start, start + span), state, chunk=64)
        state = store(state)
    return state


def test_state_is_float32_however_the_rows_are_cut():
    """bfloat16 rows: 32 calls of one row, 4 of eight and one of all leave one state."""
    inputs = draw(32, seed=3)
    narrow = {name: getattr(inputs, name).astype(jnp.bfloat16) for name in ("q", "k", "v")}
    inputs = dataclasses.replace(inputs, **narrow)
    _, want = recurrence(inputs)
    for span in (1, 8, 32):
        state = feed(inputs, span)
        assert state.dtype == jnp.float32
        assert_close(f"state of {32 // span} x {span}", state, want, FP32_OP)


def test_a_bfloat16_state_would_be_noticed():
    inputs = draw(32, seed=3)
    rounding = functools.partial(jax.lax.reduce_precision, exponent_bits=8, mantissa_bits=7)
    with pytest.raises(AssertionError, match="state: relative rms"):
        assert_close("state", feed(inputs, 8, rounding), recurrence(inputs)[1], 10 * FP32_OP)
