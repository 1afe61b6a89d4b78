"""The law of the output, by tens of thousands of draws: speculative decoding has the target's own, whatever it does.

The target is the table of `tests.markov`, so the law of each token is known exactly; each of 20 000 tokens of a case
is a draw, tested together with the two before it. The bound was set before any run: a case fails below a p-value of
ALPHA over the number of cases. Seeds are fixed, so that a run says the same every time.
"""

import jax.numpy as jnp
import numpy as np
import pytest

import dspine_jax.request
from dspine_jax import SamplingParams, WidthCosts, generate, generate_plain
from dspine_jax.loop import steps
from tests.markov import (
    KINDS,
    LAWS,
    LOGITS,
    VOCAB,
    markov_pair,
    reference_law,
    transition_counts,
    transition_p_value,
    two_sample_p_value,
)

DRAWS = 20_000
ALPHA = 1e-3
COSTS = WidthCosts((2, 4, 16), (1.0, 1.2, 1.5))  # every width is chosen at times

# Every law with every kind of drafter for the narrow widths. A pass of 16 rows costs more, so there each law has one
# kind per program, another one in each of the four programs: again every law meets every kind.
ALL = [(law, kind) for law in range(len(LAWS)) for kind in range(len(KINDS))]
WIDE = [[(law, (law + turn) % len(KINDS)) for law in range(len(LAWS))] for turn in range(4)]
# Of one proposal both methods make the same decision with the same number (tests.test_sampling_verify).
CASES = [
    ("token", 2, ALL, None),
    ("token", 4, ALL, None),
    ("token", 16, WIDE[0], None),
    ("token", "auto", WIDE[1], COSTS),
    ("block", 4, ALL, None),
    ("block", 16, WIDE[1], None),
    ("block", "auto", WIDE[2], COSTS),
]
BOUND = ALPHA / sum(len(cells) for _, _, cells, _ in CASES)
EXACT = [np.stack([reference_law(row, **law) for row in LOGITS]) for law in LAWS]


@pytest.fixture(autouse=True)
def large_batches(monkeypatch):
    monkeypatch.setattr(dspine_jax.request, "MAX_BATCH", 1024)


def draw(cells, seed, run, *, name="", **how):
    """The transition counts of each cell, at least DRAWS in each, and the statistics of the run."""
    slots = 1024 if len(cells) > 36 else 512
    each = slots // len(cells)
    params = [
        SamplingParams(**LAWS[law], seed=seed * 10**6 + slot)
        for slot, (law, _) in enumerate(cell for cell in cells for _ in range(each))
    ]
    kinds = [kind for _, kind in cells for _ in range(each)]
    pair = markov_pair(kinds + [0] * (slots - len(kinds)), name)
    size = -(-DRAWS // each) + 1
    result = run(pair, [[0]] * len(params), max_new_tokens=size, stop_token_ids=[], sampling=params, **how)
    runs = [np.concatenate([[0], tokens]) for tokens in result.tokens]
    return [transition_counts(runs[i * each : (i + 1) * each]) for i in range(len(cells))], result.stats


@pytest.mark.parametrize(("method", "width", "cells", "costs"), CASES, ids=[f"{m}-{w}" for m, w, *_ in CASES])
def test_speculative_tokens_have_the_targets_law(method, width, cells, costs, record_property):
    counts, stats = draw(cells, 1, generate, verification=method, verify_width=width, width_costs=costs)
    p_values = [transition_p_value(count, EXACT[law]) for count, (law, _) in zip(counts, cells, strict=True)]
    record_property("least p-value", min(p_values))
    print(f"{method} {width}: {len(cells)} cases, least p-value {min(p_values):.2g}, bound {BOUND:.2g}")
    assert min(count.sum() for count in counts) >= DRAWS
    worst = int(np.argmin(p_values))
    law, kind = cells[worst]
    assert p_values[worst] > BOUND, f"{LAWS[law]}, drafter {KINDS[kind]}: p-value {p_values[worst]:.2g}"
    # The test means something only if proposals were both accepted and rejected.
    assert 1.1 < stats.acceptance_length < (2 if width == 2 else 16)


def test_plain_tokens_have_the_same_law(record_property):
    """Against the exact law, and against speculative tokens of other seeds as two samples."""
    cells = [(law, 1) for law in range(len(LAWS))]
    plain, _ = draw(cells, 2, generate_plain)
    speculative, _ = draw(cells, 3, generate, verify_width=16)
    exact = [transition_p_value(count, EXACT[law]) for count, (law, _) in zip(plain, cells, strict=True)]
    same = [two_sample_p_value(a, b) for a, b in zip(plain, speculative, strict=True)]
    record_property("least p-value", min(exact + same))
    print(f"plain: least p-value {min(exact):.2g} exact, {min(same):.2g} against speculative")
    assert min(exact + same) > ALPHA / (2 * len(cells))


def test_a_width_that_looks_at_the_gated_token_would_be_found(monkeypatch):
    """The control: the same rule, which sees one row too early how likely the proposal drawn there was.

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
    cells = [(law, 1) for law in range(len(LAWS))]
    counts, _ = draw(cells, 4, generate, name="peeks", verify_width="auto", width_costs=COSTS)
    p_values = [transition_p_value(c, EXACT[law]) for c, (law, _) in zip(counts, cells, strict=True)]
    assert min(p_values) < BOUND


def test_every_cell_is_there():
    narrow = {(law, kind) for law in range(24) for kind in range(3)}
    assert len(LAWS) == 24 and {len(law) for law in LAWS} == {1, 2, 3, 4}
    assert set(ALL) == narrow
    for method in ("token", "block"):
        assert {w for m, w, *_ in CASES if m == method} | {2} == {2, 4, 16, "auto"}
    assert {cell for _, width, cells, _ in CASES if width in (16, "auto") for cell in cells} == narrow
    assert all((law.sum(axis=1) - 1 < 1e-12).all() and law.shape == (VOCAB, VOCAB) for law in EXACT)
