"""Random numbers: a seed means the same tokens anywhere, no seed means fresh ones, no number is used twice."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dspine_jax import SamplingParams, Stream, WidthCosts, generate, generate_plain
from dspine_jax.loop import steps
from dspine_jax.sampling import draws, verify
from tests.markov import KINDS, markov_pair

SIZE = 60
COPY = KINDS.index("copy")
HOW = {"verification": "block", "verify_width": "auto", "width_costs": WidthCosts((2, 4, 16), (1.0, 1.2, 1.5))}


def run(prompts, params, how=HOW, make=generate, name=""):
    pair = markov_pair([COPY] * max(len(prompts), 1), name)
    return make(pair, prompts, max_new_tokens=SIZE, stop_token_ids=[], sampling=params, **how)


@pytest.fixture(scope="module")
def alone():
    params = SamplingParams(temperature=1.0, top_p=0.95, seed=77)
    return params, run([[2, 3]], [params]).tokens[0].tolist()


def test_a_seeded_request_gives_the_same_tokens_in_any_slot_with_any_neighbours(alone):
    """The width is chosen in each cycle, which the neighbours must not change either."""
    params, want = alone
    rng = np.random.default_rng(0)
    for slot in (0, 5):
        others = [SamplingParams(temperature=float(t), top_k=3) for t in rng.uniform(0.2, 2, 7)]
        prompts = [[int(t) for t in rng.integers(0, 5, n)] for n in rng.integers(1, 9, 7)]
        others.insert(slot, params)
        prompts.insert(slot, [2, 3])
        result = run(prompts, others)
        assert result.tokens[slot].tolist() == want
        assert result.seeds[slot] == 77


def test_two_requests_of_one_seed_and_prompt_are_equal_and_others_are_not(alone):
    params, want = alone
    other = SamplingParams(temperature=1.0, top_p=0.95, seed=78)
    high = SamplingParams(temperature=1.0, top_p=0.95, seed=77 + (1 << 32))  # differs in the high word only
    tokens = [t.tolist() for t in run([[2, 3]] * 8, [params, other, params, high] * 2).tokens]
    assert tokens[0] == tokens[2] == tokens[4] == want
    assert len({tuple(t) for t in tokens}) == 3


def test_a_stream_gives_the_same_tokens(alone):
    params, want = alone
    stream = Stream(markov_pair([COPY]), [2, 3], max_new_tokens=SIZE, stop_token_ids=[], sampling=params, **HOW)
    parts = list(stream)
    assert np.concatenate(parts).tolist() == want and len(parts) > 1
    assert stream.result().seeds == [77]


def test_requests_without_a_seed_get_fresh_ones_that_repeat_the_run():
    params = SamplingParams(temperature=1.0)
    first = [run([[2, 3]], [params]) for _ in range(50)]
    assert len({tuple(r.tokens[0].tolist()) for r in first}) > 40
    seeds = [r.seeds[0] or 0 for r in first]
    assert len(set(seeds)) == 50 and max(seeds) > 1 << 60
    again = run([[2, 3]], [SamplingParams(temperature=1.0, seed=seeds[0])])
    assert again.tokens[0].tolist() == first[0].tokens[0].tolist()


def test_a_greedy_request_has_no_seed():
    result = run([[2, 3]] * 8, [SamplingParams(), SamplingParams(temperature=1.0, seed=1)] * 4)
    assert result.seeds == [None, 1] * 4


@pytest.mark.parametrize("make", [generate, generate_plain])
def test_no_number_is_used_twice(make, monkeypatch):
    """Every counter that is folded into the seed while a request runs, its first token included."""
    used: list[tuple[int, int, int]] = []
    fold = draws.fold

    def note(purpose, position, row):
        used.extend((int(p), int(r), int(purpose)) for p, r in zip(position.ravel(), row.ravel(), strict=True))

    def spy(seed, position, row, purpose):
        jax.debug.callback(note, np.int32(purpose), position, row)
        return fold(seed, position, row, purpose)

    for module in (draws, steps, verify):
        monkeypatch.setattr(module, "fold", spy)
    how = {"verification": "block", "verify_width": 4} if make is generate else {}
    monkeypatch.setattr("tests.markov.MarkovPair.plain_plan", property(lambda pair: spied.plan))
    spied = markov_pair([COPY], "spied")
    result = make(
        spied, [[2, 3]], max_new_tokens=SIZE, stop_token_ids=[], sampling=[SamplingParams(temperature=1.0)], **how
    )
    jax.effects_barrier()
    cycles = result.stats.cycles[0]
    drawn = 1 + cycles * (4 + 4 + 1) if make is generate else 1 + cycles
    assert len(used) == drawn and len(set(used)) == drawn
    assert used[0] == (1, 0, int(draws.Purpose.PLAIN))  # the prompt's last position


def test_a_counter_is_told_apart_in_every_part():
    seed = np.array([[0, 5]], np.uint32)
    keys = {
        tuple(jax.random.key_data(draws.fold(jnp.asarray(seed), *place, purpose)).ravel().tolist())
        for place in [(jnp.array([p]), jnp.array([r])) for p in (0, 1, 4) for r in (0, 1, 15)]
        for purpose in draws.Purpose
    }
    assert len(keys) == 3 * 3 * len(draws.Purpose)


def test_coins_of_neighbouring_rows_and_cycles_are_uncorrelated():
    position = jnp.arange(4000, dtype=jnp.int32)
    seed = jnp.zeros((4000, 2), jnp.uint32)
    u = np.asarray(draws.coins(draws.row_keys(seed, position, 3, draws.Purpose.ACCEPT)))
    assert u.min() >= 0 and u.max() < 1 and abs(u.mean() - 0.5) < 0.01
    pairs = [(u[:, 0], u[:, 1]), (u[:, 1], u[:, 2]), (u[:-1, 0], u[1:, 0]), (u[:-1, 2], u[1:, 0])]
    # The correlation of 4000 independent pairs is beyond 4 / sqrt(4000) once in 16 000.
    assert max(abs(np.corrcoef(a, b)[0, 1]) for a, b in pairs) < 4 / np.sqrt(4000)
