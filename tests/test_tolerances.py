"""The rule that all comparisons use must itself be able to fail."""

import math

import ml_dtypes
import numpy as np
import pytest

from tests.tolerances import assert_close, relative_rms


def test_relative_rms_of_known_values():
    want = np.array([3.0, 4.0])
    # rms(want) = 5 / sqrt(2); a difference of 0.05 in one element has rms 0.05 / sqrt(2).
    assert relative_rms([3.05, 4.0], want) == pytest.approx(0.01)
    assert relative_rms(1000 * np.array([3.05, 4.0]), 1000 * want) == pytest.approx(0.01)
    assert relative_rms(want.astype(ml_dtypes.bfloat16), want) == 0.0


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_value_that_is_not_finite_never_passes(bad):
    assert relative_rms([1.0, bad], [1.0, 1.0]) == math.inf
    assert relative_rms([1.0, bad], [1.0, bad]) == math.inf
    with pytest.raises(AssertionError, match=r"logits: relative rms inf.*at \(1,\)"):
        assert_close("logits", [1.0, bad], [1.0, 1.0], 1e-3)


def test_zeros():
    assert relative_rms(np.zeros(3), np.zeros(3)) == 0.0
    assert relative_rms([0.0, 1e-30], [0.0, 0.0]) == math.inf


def test_shapes_are_not_broadcast():
    with pytest.raises(ValueError, match="shapes differ"):
        relative_rms(np.zeros((2, 1)), np.zeros(2))


def test_assert_close_on_both_sides_of_the_bound():
    want = np.array([[3.0, 4.0]])
    assert_close("x", [[3.0499, 4.0]], want, 0.01)
    with pytest.raises(AssertionError, match=r"x: relative rms 0.0102.*\(0, 0\): got 3.051, wanted 3"):
        assert_close("x", [[3.051, 4.0]], want, 0.01)
