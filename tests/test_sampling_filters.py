"""The law of a row: order of the filters, ties, and both ways of ordering, against float64 by sorting."""

import jax.numpy as jnp
import numpy as np
import pytest

from dspine_jax.sampling import filters
from dspine_jax.sampling.filters import Filters, probabilities
from tests.markov import LAWS, reference_law
from tests.quick_jit import jit
from tests.tolerances import FP32_OP, assert_close

GREEDY = {"temperature": 0.0}
run = jit(probabilities)


def filters_of(laws) -> Filters:
    def column(name, off, dtype):
        return jnp.asarray([law.get(name, off) for law in laws], dtype)

    return Filters(
        temperature=column("temperature", 0, jnp.float32),
        top_k=column("top_k", 0, jnp.int32),
        top_p=column("top_p", 1, jnp.float32),
        min_p=column("min_p", 0, jnp.float32),
    )


def check(logits, laws):
    """Every row of slot i against law i; which tokens are left must be the same exactly."""
    got = np.asarray(run(jnp.asarray(logits), filters_of(laws)))
    want = np.array([[reference_law(row, **law) for row in rows] for rows, law in zip(logits, laws, strict=True)])
    np.testing.assert_array_equal(got > 0, want > 0)
    assert_close("law", got, want, FP32_OP)
    return got


@pytest.mark.parametrize("vocab", [8, 96])  # ordered by pairs, and without
def test_every_law_equals_float64(vocab):
    laws = [*LAWS, GREEDY, {"temperature": 1.0, "top_k": 1}, {"temperature": 2.0, "top_p": 1e-6}]
    laws += [{"temperature": 1.0, "min_p": 1.0}, {"temperature": 0.7, "top_k": vocab, "top_p": 1.0, "min_p": 0.0}]
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 2, (len(laws), 6, vocab)).astype(np.float32)
    logits[:, 3] = np.round(logits[:, 3])  # many ties
    logits[:, 4, ::2] = -np.inf
    logits[:, 5] = -0.0
    logits[:, 5, ::2] = 0.0  # both zeros are one value
    check(logits, laws)


@pytest.mark.parametrize("vocab", [8, 64])
def test_ties_go_to_the_lower_id(vocab):
    flat = np.zeros((4, 1, vocab), np.float32)
    half, quarter = vocab // 2, vocab // 4
    laws = [
        {"temperature": 1.0, "top_k": 3},
        {"temperature": 1.0, "top_p": 0.5},  # the mass before token `half` is 0.5, which is not less
        {"temperature": 1.0, "top_k": half, "top_p": 0.5},  # renormalised: half of what top-k left
        GREEDY,
    ]
    got = check(flat, laws)
    assert [np.flatnonzero(row[0]).tolist() for row in got] == [[*range(n)] for n in (3, half, quarter, 1)]


def test_logits_of_the_field_report():
    """top_k=2 and top_p=0.6 on [2, 1.5, 1, 0.5]: p = .455 .276 .167 .102."""
    logits = np.tile(np.array([2, 1.5, 1, 0.5], np.float32), (3, 1, 1))
    got = check(logits, [{"temperature": 1.0, **f} for f in ({}, {"top_k": 2}, {"top_p": 0.6})])
    e = np.exp([2, 1.5, 1, 0.5])
    np.testing.assert_allclose(got[0, 0], e / e.sum(), rtol=1e-6)
    np.testing.assert_allclose(got[1, 0], [*(e[:2] / e[:2].sum()), 0, 0], rtol=1e-6)
    np.testing.assert_allclose(got[2, 0], got[1, 0], rtol=1e-6)  # .455 alone is less than .6


def test_a_tiny_temperature_is_finite_and_the_limit_is_greedy():
    logits = np.random.default_rng(1).normal(0, 50, (2, 3, 8)).astype(np.float32)
    got = np.asarray(run(jnp.asarray(logits), filters_of([{"temperature": 1e-6, "top_p": 0.9}, GREEDY])))
    np.testing.assert_array_equal(got, np.eye(8)[logits.argmax(-1)])


def test_a_slot_without_filters_keeps_everything_beside_one_with():
    logits = np.random.default_rng(2).normal(0, 1, (2, 1, 8)).astype(np.float32)
    check(logits, [{"temperature": 1.0}, {"temperature": 1.0, "top_k": 1}])


def test_both_orderings_agree_at_the_border_of_their_sizes(monkeypatch):
    logits = np.round(np.random.default_rng(3).normal(0, 2, (len(LAWS), 4, filters.PAIRWISE)) * 2) / 2
    logits = jnp.asarray(logits, jnp.float32)
    pairs = jit(lambda x: probabilities(x, filters_of(LAWS)))(logits)
    monkeypatch.setattr(filters, "PAIRWISE", 0)
    bits = jit(lambda x: probabilities(x, filters_of(LAWS)))(logits)
    np.testing.assert_array_equal(np.asarray(pairs) > 0, np.asarray(bits) > 0)
    assert_close("law", pairs, bits, FP32_OP)
