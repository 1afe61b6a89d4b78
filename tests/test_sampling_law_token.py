"""The law of the output under verification token by token (`tests.sampling_law`), and that no cell is left out."""

import itertools

import jax.numpy as jnp
import pytest

from dspine_jax import WidthCosts
from dspine_jax.loop import steps
from tests.markov import BLOCK, KINDS, LAWS, VOCAB, WRONG, transition_fit
from tests.sampling_law import (
    BOUND,
    EXACT,
    NARROW,
    WIDTHS,
    cells_of,
    check_program,
    least_p_value,
    packs_of,
    plain_counts,
)


@pytest.mark.parametrize("width", WIDTHS)
def test_tokens_have_the_targets_law(width, record_property):
    check_program("token", width, record_property)


def test_plain_tokens_have_the_exact_law(record_property):
    p_values = [transition_fit(counts, law).p_value for counts, law in zip(plain_counts(), EXACT, strict=True)]
    record_property("least p-value", min(p_values))
    print(f"\nplain decoding, least p-value {min(p_values):.2g}, bound {BOUND:.2g}")
    assert min(p_values) > BOUND


def test_a_width_that_looks_at_the_gated_token_would_be_found(monkeypatch):
    """A control: the same rule, which sees one row too early how likely the proposal drawn there was.

    Every request names its seed and so is cut by its own choice, which here is biased in many ways at once.
    """
    choose, draw_chain, drawn = steps.choose_rows, steps.draw_chain, []

    def remember(*arguments, **named):
        draft = draw_chain(*arguments, **named)
        own = jnp.where(draft.candidates == draft.tokens[..., None], draft.q, 0.0)
        drawn.append(own.sum(axis=-1))
        return draft

    def peek(confidence, *rest):
        return choose(drawn[-1].at[:, :-1].multiply(drawn[-1][:, 1:]), *rest)

    monkeypatch.setattr(steps, "draw_chain", remember)
    monkeypatch.setattr(steps, "choose_rows", peek)
    costs = WidthCosts((2, 4), (1.0, 1.15))
    assert least_p_value(500, name="peeks", verify_width="auto", width_costs=costs) < BOUND


def test_every_cell_is_there():
    assert len(LAWS) == 24 and {len(law) for law in LAWS} == {1, 2, 3, 4}
    assert {law["temperature"] for law in LAWS} == {0.3, 1.0, 1.5}
    assert all((law.sum(axis=1) - 1 < 1e-12).all() and law.shape == (VOCAB, VOCAB) for law in EXACT)
    assert {width for width in WIDTHS if width != "auto"} == {*range(2, BLOCK + 1)} and "auto" in WIDTHS
    everything = set(itertools.product(range(len(LAWS)), range(len(KINDS))))
    always_wrong = {cell for cell in everything if cell[1] == WRONG}
    wide = set()
    for width in WIDTHS:
        cells = cells_of(width)
        assert sorted(itertools.chain(*packs_of(cells))) == cells
        if width != "auto" and width <= NARROW:
            assert set(cells) == everything
        else:
            assert everything - always_wrong < set(cells)
            wide |= set(cells)
    assert wide == everything
