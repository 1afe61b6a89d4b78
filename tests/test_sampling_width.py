"""The verify width: rows that are not asked for are not run, and the choice sees nothing that it must not see."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dspine_jax import DraftOptions, WidthCosts, generate, measure_widths
from dspine_jax.drafter.propose import Proposer
from dspine_jax.sampling.width import auto_widths, choose_rows
from tests.markov import BLOCK, KINDS, markov_pair
from tests.quick_jit import jit

WIDTHS = (2, 4, 16)
COSTS = WidthCosts(WIDTHS, (1.0, 1.2, 1.5))
COPY = KINDS.index("copy")
passes: list[int] = []


def generate_alone(**how):
    """One request, and the rows of every target pass that really ran after the prompt's."""
    passes.clear()
    pair = markov_pair([COPY], "width", on_pass=passes.append)
    result = generate(pair, [[4]], max_new_tokens=60, stop_token_ids=[], **how)
    jax.effects_barrier()
    return result, passes[1:]


@pytest.mark.parametrize("width", [2, None])
def test_a_fixed_width_runs_that_many_rows(width):
    result, ran = generate_alone(temperature=1.0, seed=3, verify_width=width)
    rows = BLOCK if width is None else width
    assert ran == [rows] * result.stats.cycles[0]
    assert result.stats.target_rows == (sum(ran),) and result.stats.rows_per_cycle == rows
    assert result.stats.accepted[0].max() <= rows - 1


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_auto_runs_different_widths_and_counts_them(temperature):
    result, ran = generate_alone(temperature=temperature, seed=3, verify_width="auto", width_costs=COSTS)
    assert result.stats.target_rows == (sum(ran),) and len(ran) == result.stats.cycles[0]
    assert set(ran) <= set(WIDTHS) and len(set(ran)) > 1
    assert result.stats.width_costs == COSTS


@pytest.mark.parametrize(("seconds", "width"), [((1.0, 99.0, 999.0), 2), ((1.0, 1.0001, 1.0002), 16)])
def test_auto_follows_the_costs(seconds, width):
    """The same program: costs are data."""
    _, ran = generate_alone(temperature=1.0, seed=3, verify_width="auto", width_costs=WidthCosts(WIDTHS, seconds))
    assert set(ran) == {width}


def test_measured_costs_fit_the_request():
    costs = measure_widths(markov_pair([COPY]), widths=(4,), repeats=1)
    assert costs.widths == (4,) and costs.seconds[0] > 0
    assert [auto_widths(n) for n in (16, 4, 2)] == [(4, 8, 16), (2, 4), (2,)]


choose = jit(functools.partial(choose_rows, widths=WIDTHS))


def decide(confidence, alone, seconds=(1.0, 1.3, 2.0), active=None):
    confidence = jnp.asarray(confidence, jnp.float32)
    active = jnp.ones(len(confidence), jnp.bool_) if active is None else jnp.asarray(active)
    index, rows = choose(confidence, active, jnp.asarray(alone), jnp.asarray(seconds, jnp.float32))
    return int(index), np.asarray(rows)


def test_rows_behind_a_width_do_not_enter_the_choice_of_going_beyond_it():
    """Whatever comes after row w_j, the decision at w_j stays."""
    rng = np.random.default_rng(0)
    seen = set()
    for _ in range(60):
        confidence = rng.uniform(0.2, 1.0, (4, BLOCK - 1)) ** rng.uniform(0.1, 2)
        alone = rng.random(4) < 0.5
        index, rows = decide(confidence, alone)
        seen.add(index)
        for stage in range(len(WIDTHS) - 1):
            changed = confidence.copy()
            changed[:, WIDTHS[stage] - 1 :] = rng.uniform(0.01, 1.0, changed[:, WIDTHS[stage] - 1 :].shape)
            other, other_rows = decide(changed, alone)
            # Whether the pass, and each slot by itself, goes beyond this stage is the same as before.
            assert (other > stage) == (index > stage)
            np.testing.assert_array_equal(other_rows > WIDTHS[stage], rows > WIDTHS[stage])
    assert seen == {0, 1, 2}


def test_a_seeded_slot_chooses_by_itself_and_the_others_together():
    sure, unsure = np.full(BLOCK - 1, 0.99), np.full(BLOCK - 1, 0.05)
    index, rows = decide([sure, unsure], [False, True])
    assert (index, rows.tolist()) == (2, [16, 2])  # the pass is wide, the seeded slot uses two rows of it
    index, rows = decide([unsure, sure], [False, True])
    assert (index, rows.tolist()) == (2, [16, 16])  # a wide pass costs the others nothing more
    index, rows = decide([unsure, sure], [False, True], active=[True, False])
    assert (index, rows[0]) == (0, 2)  # a slot that is done asks for nothing
    for neighbours in ([sure] * 3, [unsure] * 3):
        confidence = np.linspace(0.99, 0.3, BLOCK - 1)
        _, rows = decide([confidence, *neighbours], [True, False, True, False])
        assert rows[0] == decide([confidence], [True])[1][0]


def test_the_widest_pays_when_rows_are_free():
    index, rows = decide(np.full((2, BLOCK - 1), 0.5), [False, False], seconds=(1.0, 1.0, 1.0))
    assert (index, rows.tolist()) == (2, [16, 16])


def test_sampling_with_a_table_tail_is_refused():
    proposer = Proposer(drafter=None, borrowed=None, options=DraftOptions(tail="table"))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="need tail 'direct'"):
        proposer.tables(*[None] * 3)  # type: ignore[arg-type]
