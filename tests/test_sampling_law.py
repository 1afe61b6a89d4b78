"""The law of the output, by tens of millions of draws: speculative decoding has the target's own, whatever it does.

Every temperature with every combination of filters, every kind of drafter, both verifications, every verify width:
each of these cells has at least 20 000 draws. The target is the table of `tests.markov`, so the law of each token is
known exactly; a draw is a token, tested together with the two before it, which lie in the same block or in earlier
ones. Each cell is tested against the exact law and against tokens of `generate_plain`, and all cells of a program once
more together.

The bound was set before any run: nothing may have a p-value below ALPHA over the number of p-values. Seeds are fixed,
so that a run says the same every time.
"""

import functools
import inspect
import itertools
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
import pytest

import dspine_jax.request
from dspine_jax import SamplingParams, WidthCosts, generate, generate_plain, loop
from dspine_jax.loop import compiled, steps
from dspine_jax.sampling import verify
from tests.markov import (
    BLOCK,
    CANDIDATES,
    COPY,
    KINDS,
    LAWS,
    LOGITS,
    PERIOD,
    SCORES,
    VOCAB,
    WRONG,
    markov_pair,
    reference_law,
    same_transitions,
    together,
    transition_counts,
    transition_fit,
)
from tests.quick_jit import longer_jit

DRAWS, SLOTS, ALPHA = 20_000, 1024, 1e-3
COSTS = WidthCosts((2, 4, 16), (1.0, 1.15, 1.2))  # every width is chosen at times

CELLS = list(itertools.product(range(len(LAWS)), range(len(KINDS))))
PROGRAMS = list(itertools.product(("token", "block"), (*range(2, BLOCK + 1), "auto")))
# Of each cell two, of each program two, of each law of plain decoding one.
P_VALUES = 2 * len(CELLS) * len(PROGRAMS) + 2 * len(PROGRAMS) + len(LAWS)
BOUND = ALPHA / P_VALUES
EXACT = [np.stack([reference_law(row, **law) for row in LOGITS]) for law in LAWS]


def cycle_length(cell) -> float:
    """Tokens that a cycle over a whole block emits on average, about."""
    law, kind = cell
    total = 0.0
    for phase in range(PERIOD):
        alive = np.linalg.matrix_power(EXACT[law], 100)[0]  # [V] mass that has been accepted so far, by last token
        for row in range(BLOCK - 1):
            total += alive.sum() / PERIOD
            right = kind == WRONG and (phase + row) % PERIOD
            alive = alive @ common_mass(law, COPY if right else kind, row)
    return total


@functools.cache
def common_mass(law, kind, row) -> np.ndarray:
    """[last, next] what the laws of draft and target have in common."""
    out = np.zeros((VOCAB, VOCAB))
    candidates = CANDIDATES[kind, row]
    for last in range(VOCAB):
        draft = reference_law(SCORES[kind, last, candidates], **LAWS[law])
        out[last, candidates] = np.minimum(draft, EXACT[law][last, candidates])
    return out


# Cells that need about as many cycles run together: a batch runs until its slowest slot is done.
PACKS = [sorted(CELLS, key=cycle_length)[i : i + 12] for i in range(0, len(CELLS), 12)]

run = longer_jit(inspect.unwrap(compiled.run), static_argnames=("plan", "verification"), donate_argnames="state")


@pytest.fixture(scope="module", autouse=True)
def quick_large_batches():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dspine_jax.request, "MAX_BATCH", SLOTS)
        patch.setattr(loop, "run", run)
        yield


def draw(cells: Sequence, seed: int, generate, *, name="", **how):
    """The transition counts of each cell, at least DRAWS in each, and the statistics of the run."""
    each = SLOTS // len(cells)
    slots = [cell for cell in cells for _ in range(each)]
    params = [SamplingParams(**LAWS[law], seed=seed * SLOTS + slot) for slot, (law, _) in enumerate(slots)]
    pair = markov_pair([kind for _, kind in slots] + [0] * (SLOTS - len(slots)), name)
    size = -(-DRAWS // each) + 1  # the first token of a run is no draw
    result = generate(pair, [[0]] * len(slots), max_new_tokens=size, stop_token_ids=[], sampling=params, **how)
    runs = [np.concatenate([[0], tokens]) for tokens in result.tokens]
    return [transition_counts(runs[i * each : (i + 1) * each]) for i in range(len(cells))], result.stats


@pytest.fixture(scope="module")
def plain():
    """Transition counts of plain decoding, per law."""
    return draw([(law, 0) for law in range(len(LAWS))], 0, generate_plain)[0]


def test_plain_tokens_have_the_exact_law(plain, record_property):
    p_values = [transition_fit(counts, law).p_value for counts, law in zip(plain, EXACT, strict=True)]
    record_property("least p-value", min(p_values))
    assert min(counts.sum() for counts in plain) >= DRAWS
    assert min(p_values) > BOUND


@pytest.mark.parametrize(("method", "width"), PROGRAMS)
def test_speculative_tokens_have_the_targets_law(method, width, plain, record_property):
    costs = COSTS if width == "auto" else None
    exact, same, accepted = {}, {}, np.zeros(BLOCK, int)
    for index, pack in enumerate(PACKS):
        seed = 1 + PROGRAMS.index((method, width)) * len(PACKS) + index
        counts, stats = draw(pack, seed, generate, verification=method, verify_width=width, width_costs=costs)
        accepted += stats.histogram
        for count, (law, kind) in zip(counts, pack, strict=True):
            assert count.sum() >= DRAWS
            exact[law, kind] = transition_fit(count, EXACT[law])
            same[law, kind] = same_transitions(count, plain[law])
    assert set(exact) == set(CELLS)

    table = {}
    for name, fits in (("exact law", exact), ("plain decoding", same)):
        worst = min(fits, key=lambda cell: fits[cell].p_value)
        table[name] = (fits[worst].p_value, together(fits.values()).p_value)
        case = f"{LAWS[worst[0]]}, drafter {KINDS[worst[1]]}"
        assert table[name][0] > BOUND, f"{method} {width}, {name}: {case} has p-value {table[name][0]:.2g}"
        assert table[name][1] > BOUND, f"{method} {width}, {name}: all cells together have {table[name][1]:.2g}"
    columns = [f"{p:.2g}" for pair in table.values() for p in pair]
    record_property("p-values", columns)
    print("\n| " + " | ".join([method, str(width), *columns]) + " |")
    # It means something only if each number of proposals was often accepted, and so each row often the last one.
    assert accepted[: BLOCK if width == "auto" else width].min() > 500


def least_p_value(seed, **how) -> float:
    """Of the drafter that is near the law, over all laws, by one program."""
    counts, _ = draw([(law, COPY) for law in range(len(LAWS))], seed, generate, **how)
    return min(transition_fit(count, exact).p_value for count, exact in zip(counts, EXACT, strict=True))


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
    assert least_p_value(1000, name="peeks", verify_width="auto", width_costs=COSTS) < BOUND


def test_a_wrong_row_behind_the_whole_block_would_be_found(monkeypatch):
    """A control: only the token after the last of 15 accepted proposals is drawn from the row before."""
    residual = verify.residual

    def late(candidates, q, p, *rest):
        return residual(candidates, q, p.at[:, -1].set(p[:, -2]), *rest)

    monkeypatch.setattr(verify, "residual", late)
    assert least_p_value(1001, name="late", verify_width=BLOCK) < BOUND


def test_every_cell_is_there():
    assert len(LAWS) == 24 and {len(law) for law in LAWS} == {1, 2, 3, 4}
    assert {law["temperature"] for law in LAWS} == {0.3, 1.0, 1.5}
    assert len(CELLS) == 24 * len(KINDS) and sorted(itertools.chain(*PACKS)) == CELLS
    assert {width for _, width in PROGRAMS} == {*range(2, BLOCK + 1), "auto"} and len(PROGRAMS) == 32
    assert all((law.sum(axis=1) - 1 < 1e-12).all() and law.shape == (VOCAB, VOCAB) for law in EXACT)
