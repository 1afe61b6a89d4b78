"""Acceptance statistics: definitions, and that the loop counts by them."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from dspine_jax.generate import Stats
from dspine_jax.verify import leading_run, verify_greedy
from tests.scripted import generate_scripted, pair_of, plain_requests, random_prompts


def test_three_cycles_of_0_2_and_15():
    """One token from the prompt's pass, then 1 + 3 + 16."""
    request = plain_requests(pair_of(), random_prompts(21, [9]))[0]
    result = generate_scripted(pair_of(), [dataclasses.replace(request, limit=21)], [[0, 2, 15]])
    stats = result.stats
    assert stats.cycles == (3,)
    assert stats.accepted[0].tolist() == [0, 2, 15]
    assert stats.emitted == (21,)
    assert stats.block_size == 16
    assert stats.acceptance_length == (1 + 3 + 16) / 3
    assert stats.histogram.tolist() == [1, 0, 1] + [0] * 12 + [1]
    drafted = sum(stats.cycles) * (stats.block_size - 1)
    assert (drafted, int(np.sum(stats.accepted[0]))) == (45, 17)


def test_requests_are_pooled_by_cycles():
    """Two requests of 3 and 1 cycles: the length is the mean over four cycles, not over two requests."""
    requests = plain_requests(pair_of(), random_prompts(22, [4, 30]))
    batch = [dataclasses.replace(requests[0], limit=13), dataclasses.replace(requests[1], limit=17)]
    stats = generate_scripted(pair_of(), batch, [3, 15]).stats
    assert stats.cycles == (3, 1)
    assert stats.acceptance_length == (12 + 16) / 4
    assert stats.histogram.tolist() == [0, 0, 0, 3] + [0] * 11 + [1]


def test_a_finished_request_counts_no_more_cycles():
    requests = plain_requests(pair_of(), random_prompts(23, [4, 30]))
    batch = [dataclasses.replace(requests[0], limit=1), dataclasses.replace(requests[1], limit=31)]
    stats = generate_scripted(pair_of(), batch, [15, 0]).stats
    assert stats.cycles == (0, 30)
    assert stats.acceptance_length == 1.0
    assert stats.histogram.tolist() == [30] + [0] * 15


def test_a_limit_cuts_the_tokens_and_not_the_agreement():
    """The target agreed with 15 proposals; two of them and its own token were asked for."""
    request = plain_requests(pair_of(), random_prompts(24, [4]))[0]
    stats = generate_scripted(pair_of(), [dataclasses.replace(request, limit=4)], [15]).stats
    assert (stats.accepted[0].tolist(), stats.acceptance_length) == ([15], 3.0)


def test_no_cycle_has_no_acceptance_length():
    stats = Stats(cycles=(0,), accepted=(np.zeros(0, np.int32),), emitted=(1,), block_size=4)
    assert np.isnan(stats.acceptance_length)
    assert stats.histogram.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("matches", "run"),
    [([0, 1, 1], 0), ([1, 0, 1], 1), ([1, 1, 0], 2), ([1, 1, 1], 3), ([0, 0, 0], 0)],
)
def test_leading_run(matches, run):
    assert int(leading_run(jnp.array([matches], dtype=jnp.bool_))[0]) == run


def test_verification_takes_the_lowest_of_tied_choices():
    logits = jnp.zeros((2, 3, 5)).at[:, 0, jnp.array([1, 3])].set(2.0).at[:, 1, 4].set(1.0)
    accepted, choices = verify_greedy(jnp.array([[1, 4], [3, 4]]), logits)
    assert choices.tolist() == [[1, 4, 0]] * 2
    assert accepted.tolist() == [2, 0]
