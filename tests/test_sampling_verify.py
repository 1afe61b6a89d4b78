"""The chain and both verifiers: against dense forms with the same numbers, and by their exact laws."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest

from dspine_jax import SamplingParams
from dspine_jax.sampling import verify
from dspine_jax.sampling.draft import draw_chain
from dspine_jax.sampling.draws import Purpose, coins, fold, gumbels, row_keys
from dspine_jax.sampling.state import Sampling
from dspine_jax.verify import verify_greedy
from tests.markov import LAWS, reference_law
from tests.quick_jit import jit
from tests.tolerances import FP32_OP, assert_close

SLOTS, WIDTH, VOCAB, KEEP = 960, 5, 11, 4
NO_STOP = jnp.full((SLOTS, 1), -1, jnp.int32)


def sampling_of(params) -> Sampling:
    padded = [params[slot % len(params)] for slot in range(SLOTS)]
    seeds = [p.seed if p.seed is not None else slot for slot, p in enumerate(padded)]
    state = Sampling.of(padded, seeds, [np.zeros(1, np.int32)] * SLOTS, SLOTS, VOCAB)
    assert state is not None
    return state


VERIFY = {method: jit(functools.partial(verify.verify_sampled, method=method)) for method in ("token", "block")}


@jit
def case(sampling, scores, candidates, logits, position):
    """A drawn chain and the target's law of every row."""
    emitted = jnp.zeros(SLOTS, jnp.int32)
    draft = draw_chain(scores, candidates, sampling, position=position, emitted=emitted, stop_ids=NO_STOP)
    return draft, sampling.law(logits, draft.tokens, emitted, NO_STOP)


@pytest.fixture(scope="module")
def drawn():
    """Every law, greedy among them, over random scores and logits that agree in part."""
    rng = np.random.default_rng(0)
    sampling = sampling_of([SamplingParams(**law) for law in LAWS] + [SamplingParams()] * 8)
    candidates = np.stack([[rng.permutation(VOCAB)[:KEEP] for _ in range(WIDTH - 1)] for _ in range(SLOTS)])
    logits = rng.normal(0, 1.5, (SLOTS, WIDTH, VOCAB)).astype(np.float32)
    near = np.take_along_axis(logits[:, :-1], candidates, axis=2)[:, :, None]
    scores = (near + rng.normal(0, 0.7, (SLOTS, WIDTH - 1, KEEP, KEEP))).astype(np.float32)
    scores[:, 0] = scores[:, 0, :1]  # the first row has one predecessor
    position = jnp.asarray(rng.integers(0, 999, SLOTS), jnp.int32)
    draft, p = case(sampling, jnp.asarray(scores), jnp.asarray(candidates, jnp.int32), jnp.asarray(logits), position)
    return sampling, draft, p, position, scores, logits


def dense(method, draft, p, coin, noise, rows):
    """NumPy, with q over the whole vocabulary; float32 like the sparse form."""
    p, q_sparse = np.asarray(p), np.asarray(draft.q)
    q = np.zeros((SLOTS, WIDTH - 1, VOCAB), np.float32)
    np.put_along_axis(q, np.asarray(draft.candidates), q_sparse, axis=2)
    accepted, final = np.zeros(SLOTS, int), np.zeros(SLOTS, int)
    for slot, limit in enumerate(rows - 1):
        d = np.asarray(draft.tokens)[slot]
        prefix = [np.float32(1)]
        for i in range(limit):
            prefix.append(np.minimum(prefix[-1] * (p[slot, i, d[i]] / q[slot, i, d[i]]), np.float32(1)))
        a = 0
        if method == "token":
            while a < limit and coin[slot, a] * q[slot, a, d[a]] < p[slot, a, d[a]]:
                a += 1
            scale = np.float32(1)
        else:
            for i in range(1, limit + 1):
                h = prefix[i]
                if i < limit and h < 1:
                    mass = np.maximum(prefix[i] * p[slot, i] - q[slot, i], 0).sum()
                    h = mass / (mass + 1 - prefix[i])
                a = i if coin[slot, i - 1] < h else a
            scale = prefix[a]
        weights = p[slot, a]
        if a < limit:
            rest = np.maximum(scale * p[slot, a] - q[slot, a], 0)
            weights = rest if rest.sum() > 0 else weights
        with np.errstate(divide="ignore"):
            accepted[slot], final[slot] = a, np.argmax(np.log(weights) + noise(slot, a))
    return accepted, final


@pytest.mark.parametrize("method", ["token", "block"])
def test_sparse_and_dense_agree_with_equal_coins(drawn, method):
    sampling, draft, p, position, *_ = drawn
    rows = np.resize([WIDTH, 2, 3, WIDTH], SLOTS)
    accepted, choices = VERIFY[method](sampling, draft, p, position, jnp.asarray(rows, jnp.int32))
    coin = np.asarray(coins(row_keys(sampling.seed, position, WIDTH, Purpose.ACCEPT)[:, 1:]))
    per_row = [
        np.asarray(gumbels(fold(sampling.seed, position, jnp.full(SLOTS, a, jnp.int32), Purpose.RESIDUAL), VOCAB))
        for a in range(WIDTH)
    ]
    want, final = dense(method, draft, p, coin, lambda slot, a: per_row[a][slot], rows)
    np.testing.assert_array_equal(accepted, want)
    assert {int(a) for a in accepted} == set(range(WIDTH))
    tokens = np.asarray(draft.tokens)
    for slot, a in enumerate(want):
        assert np.asarray(choices)[slot, : a + 1].tolist() == [*tokens[slot, :a], final[slot]]


def test_greedy_rows_beside_sampled_ones_are_verified_greedily(drawn):
    sampling, draft, p, position, _, logits = drawn
    greedy = np.asarray(sampling.filters.temperature) == 0
    want, choices = verify_greedy(draft.tokens, jnp.asarray(logits))
    rows = jnp.full(SLOTS, WIDTH, jnp.int32)
    for method in ("token", "block"):
        accepted, got = VERIFY[method](sampling, draft, p, position, rows)
        np.testing.assert_array_equal(np.asarray(accepted)[greedy], np.asarray(want)[greedy])
        for slot in np.flatnonzero(greedy):
            n = int(want[slot]) + 1
            assert np.asarray(got)[slot, :n].tolist() == np.asarray(choices)[slot, :n].tolist()
    assert greedy.any() and len(set(np.asarray(want)[greedy].tolist())) > 2


def test_recorded_q_is_the_law_of_the_draw(drawn):
    """For every law: the row kept is the one of the predecessor really drawn, filtered with the request's filters."""
    _, draft, _, _, scores, _ = drawn
    params = [*LAWS, *[{"temperature": 0.0}] * 8]
    tokens, candidates, q = np.asarray(draft.tokens), np.asarray(draft.candidates), np.asarray(draft.q)
    want = np.zeros_like(q, np.float64)
    for slot in range(SLOTS):
        u = 0
        for t in range(WIDTH - 1):
            want[slot, t] = reference_law(scores[slot, t, u], **params[slot % len(params)])
            u = int(np.flatnonzero(candidates[slot, t] == tokens[slot, t])[0])
            assert q[slot, t, u] > 0
    assert_close("q", q, want, FP32_OP)
    assert np.asarray(draft.confidence).min() >= 1 / KEEP


def test_draws_follow_the_recorded_q():
    """One table for all slots, each with its own seed: frequencies of the first two proposals against q."""
    rng = np.random.default_rng(3)
    scores = np.broadcast_to(rng.normal(0, 1, (1, WIDTH - 1, KEEP, KEEP)), (SLOTS, WIDTH - 1, KEEP, KEEP)).copy()
    scores[:, 0] = scores[:, 0, :1]
    candidates = np.broadcast_to(np.arange(KEEP) * 2, (SLOTS, WIDTH - 1, KEEP))
    sampling = sampling_of([SamplingParams(temperature=1.0)])
    counts = np.zeros((KEEP, KEEP))
    for position in range(20):
        draft, _ = case(
            sampling,
            jnp.asarray(scores, jnp.float32),
            jnp.asarray(candidates, jnp.int32),
            jnp.zeros((SLOTS, WIDTH, VOCAB), jnp.float32),
            jnp.full(SLOTS, position, jnp.int32),
        )
        first, second = np.asarray(draft.tokens)[:, :2].T // 2
        np.add.at(counts, (first, second), 1)
    law = np.stack([reference_law(scores[0, 1, u], temperature=1.0) for u in range(KEEP)])
    law *= reference_law(scores[0, 0, 0], temperature=1.0)[:, None]
    expected = counts.sum() * law
    assert expected.min() > 5
    # 15 degrees of freedom: 37.7 is passed once in a thousand.
    assert ((counts - expected) ** 2 / expected).sum() < 37.7


def test_a_block_accepts_at_least_as_much_as_tokens(drawn):
    """On average; here over the same drafts and coins."""
    sampling, draft, p, position, *_ = drawn
    rows = jnp.full(SLOTS, WIDTH, jnp.int32)
    mean = {}
    for method in ("token", "block"):
        runs = [VERIFY[method](sampling, draft, p, position + 1000 * k, rows)[0] for k in range(20)]
        mean[method] = np.mean([np.asarray(accepted) for accepted in runs])
    assert mean["block"] > mean["token"]


def test_of_one_proposal_both_methods_decide_the_same(drawn):
    sampling, draft, p, position, *_ = drawn
    rows = jnp.full(SLOTS, 2, jnp.int32)
    token, block = (VERIFY[method](sampling, draft, p, position, rows) for method in ("token", "block"))
    np.testing.assert_array_equal(token[0], block[0])
    np.testing.assert_array_equal(token[1][:, :2], block[1][:, :2])
    assert set(np.asarray(token[0]).tolist()) == {0, 1}


def test_equal_laws_accept_everything():
    """p = q: every proposal stands, up to rounding, in both methods."""
    rng = np.random.default_rng(4)
    candidates = np.broadcast_to(np.arange(KEEP), (SLOTS, WIDTH - 1, KEEP))
    logits = np.full((SLOTS, WIDTH, VOCAB), -np.inf, np.float32)
    logits[:, :, :KEEP] = rng.normal(0, 1, (SLOTS, WIDTH, KEEP))
    scores = np.repeat(logits[:, :-1, None, :KEEP], KEEP, axis=2)
    sampling = sampling_of([SamplingParams(temperature=1.0)])
    position = jnp.zeros(SLOTS, jnp.int32)
    draft, p = case(sampling, jnp.asarray(scores), jnp.asarray(candidates, jnp.int32), jnp.asarray(logits), position)
    rows = jnp.full(SLOTS, WIDTH, jnp.int32)
    for method in ("token", "block"):
        accepted, _ = VERIFY[method](sampling, draft, p, position, rows)
        assert np.mean(np.asarray(accepted) == WIDTH - 1) > 0.999


def test_a_rejection_by_rounding_still_gives_a_possible_token():
    """Where nothing is left of relu(p - q), p itself is drawn from."""
    p = jnp.asarray([[[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]], jnp.float32)
    q = jnp.asarray([[[0.5, 0.5]]], jnp.float32)
    candidates = jnp.asarray([[[0, 1]]], jnp.int32)
    zero = jnp.zeros(1, jnp.int32)
    rest = verify.residual(candidates, q, p, zero, jnp.ones(1, jnp.float32), zero + 1)
    np.testing.assert_array_equal(rest, [[0.5, 0.5, 0.0]])
