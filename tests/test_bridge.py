"""The bridge against its reference and float64, and what may reach what."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.bridge import BridgeGates, bridge, bridge_reference
from tests import oracle_drafter
from tests.quick_jit import jit
from tests.tolerances import BF16_OP, FP32_OP, assert_close

_bridge = jit(bridge, static_argnames="eps")
_reference = jit(bridge_reference, static_argnames="eps")

B, T, H, C, M = 3, 7, 20, 6, 10
EPS = 1e-6


class Case:
    """Blocks [B, T, H] with weights that keep gates away from 0 and 1."""

    def __init__(self, seed: int = 0, dtype=jnp.float32):
        rng = np.random.default_rng(seed)

        def draw(*shape, scale=1.0):
            return jnp.asarray(rng.normal(0.0, scale, shape), dtype)

        self.x = draw(B, T, H) * jnp.asarray(rng.uniform(0.1, 30.0, (B, T, 1)), dtype)
        self.anchor_code = draw(B, C)
        self.readout, self.write = draw(C, H, scale=H**-0.5), draw(H, M, scale=M**-0.5)
        self.matrices = [draw(M, C, scale=C**-0.5) for _ in range(3)]
        self.bias = draw(M)

    @property
    def gates(self) -> BridgeGates:
        receiver, predecessor, message = self.matrices
        return BridgeGates(receiver_gate=receiver, predecessor_gate=predecessor, message=message, gate_bias=self.bias)

    def run(self, x=None, anchor_code=None):
        x = self.x if x is None else x
        anchor_code = self.anchor_code if anchor_code is None else anchor_code
        return _bridge(x, anchor_code, self.readout, self.write, self.gates, eps=EPS)

    def float64(self, slot: int):
        wide = oracle_drafter.wide
        receiver, predecessor, message = map(wide, self.matrices)
        gates = oracle_drafter.Gates(receiver, predecessor, message, wide(self.bias))
        return oracle_drafter.bridge(
            wide(self.x[slot]), wide(self.anchor_code[slot]), wide(self.readout), wide(self.write), gates, EPS
        )


@pytest.mark.parametrize(("dtype", "bound"), [(jnp.float32, FP32_OP), (jnp.bfloat16, BF16_OP)])
def test_equals_float64(dtype, bound):
    case = Case(dtype=dtype)
    x, r, c = case.run()
    assert (x.dtype, r.dtype, c.dtype) == (dtype, jnp.float32, jnp.float32)
    for slot in range(B):
        want_x, want_r, want_c = case.float64(slot)
        assert_close("x", x[slot], want_x, bound)
        assert_close("r", r[slot, :, 0], want_r, FP32_OP)
        assert_close("c", c[slot], want_c, bound)


def test_equals_the_reference():
    case = Case(seed=1)
    got = case.run()[0]
    for slot in range(B):
        want = _reference(case.x[slot], case.anchor_code[slot], case.readout, case.write, case.gates, eps=EPS)[0]
        assert_close("x", got[slot], want, FP32_OP)


def test_row_0_is_left_bit_for_bit():
    case = Case()
    np.testing.assert_array_equal(case.run()[0][:, 0], case.x[:, 0])
    np.testing.assert_array_equal(case.run(anchor_code=case.anchor_code * 3)[0][:, 0], case.x[:, 0])


def test_the_anchors_code_does_not_depend_on_row_0():
    """Row 1 hears the known token, whatever row 0's residual says."""
    case = Case()
    got = case.run(case.x.at[:, 0].multiply(-5.0))[0]
    np.testing.assert_array_equal(got[:, 1:], case.run()[0][:, 1:])


def test_nothing_crosses_blocks():
    case = Case()
    before = case.run()[0]
    after = case.run(case.x.at[1].set(-2 * case.x[1][::-1]), case.anchor_code.at[1].multiply(7.0))[0]
    np.testing.assert_array_equal(after[0], before[0])
    np.testing.assert_array_equal(after[2], before[2])
    assert (np.abs(np.asarray(after[1] - before[1])).max(axis=-1) > 0).all()


@pytest.mark.parametrize("row", range(1, T))
def test_a_row_reaches_itself_and_the_next_one_only(row):
    """One bridge carries a message by one row; layers together carry it further."""
    case = Case()
    before = case.run()[0]
    after = case.run(case.x.at[:, row].add(1.0))[0]
    changed = np.flatnonzero(np.abs(np.asarray(after - before)).max(axis=(0, 2)))
    assert changed.tolist() == [row, row + 1][: T - row]


def test_scale_of_a_row_scales_its_write():
    """Codes are free of scale: multiplying all rows multiplies the result, up to eps."""
    case = Case()
    assert_close("x", case.run(case.x * 64)[0], case.run()[0] * 64, FP32_OP)


def test_zero_rows_stay_zero():
    case = Case()
    x = jnp.zeros_like(case.x)
    np.testing.assert_array_equal(case.run(x)[0], x)


def test_a_zero_row_has_a_finite_gradient():
    case = Case()

    def total(readout):
        x = case.x.at[:, 2].set(0.0)
        return jnp.sum(bridge(x, case.anchor_code, readout, case.write, case.gates, eps=EPS)[0])

    assert bool(jnp.isfinite(jit(jax.grad(total))(case.readout)).all())
