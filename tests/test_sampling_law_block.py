"""The law of the output under verification as a block (`tests.sampling_law`)."""

import pytest

from dspine_jax.sampling import verify
from tests.markov import BLOCK
from tests.sampling_law import BOUND, WIDTHS, check_program, least_p_value


@pytest.mark.parametrize("width", WIDTHS)
def test_tokens_have_the_targets_law(width, record_property):
    check_program("block", width, record_property)


def test_a_wrong_row_behind_the_whole_block_would_be_found(monkeypatch):
    """A control: only the token after the last of 15 accepted proposals is drawn from the row before."""
    residual = verify.residual

    def late(candidates, q, p, *rest):
        return residual(candidates, q, p.at[:, -1].set(p[:, -2]), *rest)

    monkeypatch.setattr(verify, "residual", late)
    assert least_p_value(600, name="late", verification="block", verify_width=BLOCK) < BOUND
