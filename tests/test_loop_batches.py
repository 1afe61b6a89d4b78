"""A request gets the same tokens and the same proposals alone, beside copies of itself, and beside others."""

import dataclasses

import numpy as np
import pytest

from dspine_jax.generate import Stream, generate, generate_plain
from tests.copying import copying_pair
from tests.scripted import generate_scripted, pair_of, plain_requests, random_prompts

NEW = 48


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    return random_prompts(61, [20, 1, 45, 3, 130])


@pytest.fixture(scope="module")
def alone(prompts):
    """Each prompt's generation, found equal to plain decoding."""
    pair, results = copying_pair(), []
    for prompt in prompts:
        result = generate(pair, [prompt], max_new_tokens=NEW, stop_token_ids=[])
        plain = generate_plain(pair, [prompt], max_new_tokens=NEW, stop_token_ids=[])
        np.testing.assert_array_equal(result.tokens, plain.tokens)
        results.append(result)
    return results


def test_the_copying_drafter_is_sometimes_right(alone):
    """Otherwise equal acceptance would say nothing about equal proposals."""
    accepted = np.concatenate([result.stats.accepted[0] for result in alone])
    assert accepted.min() == 0 and len(set(accepted.tolist())) >= 4


@pytest.mark.parametrize("batch", [2, 5, 16])
def test_identical_prompts_get_identical_rows(prompts, alone, batch):
    result = generate(copying_pair(), [prompts[0]] * batch, max_new_tokens=NEW, stop_token_ids=[])
    for tokens, accepted in zip(result.tokens, result.stats.accepted, strict=True):
        np.testing.assert_array_equal(tokens, alone[0].tokens[0])
        np.testing.assert_array_equal(accepted, alone[0].stats.accepted[0])


def test_different_prompts_equal_each_alone(prompts, alone):
    result = generate(copying_pair(), prompts, max_new_tokens=NEW, stop_token_ids=[])
    for slot, single in enumerate(alone):
        np.testing.assert_array_equal(result.tokens[slot], single.tokens[0])
        np.testing.assert_array_equal(result.stats.accepted[slot], single.stats.accepted[0])


def test_streamed_cycles_equal_the_compiled_loop(prompts, alone):
    for prompt, single in zip(prompts[:2], alone[:2], strict=True):
        stream = Stream(copying_pair(), prompt, max_new_tokens=NEW, stop_token_ids=[])
        parts = list(stream)
        np.testing.assert_array_equal(np.concatenate(parts), single.tokens[0])
        assert [len(part) for part in parts[1:-1]] == (single.stats.accepted[0][:-1] + 1).tolist()
        np.testing.assert_array_equal(stream.result().stats.accepted[0], single.stats.accepted[0])


def test_a_perfect_copy_is_accepted_whole(prompts):
    """No context matters to this target and the tail knows its rule: every proposal is right."""
    pair, new = copying_pair(mixing=0.0, code=1e4), 1 + 3 * 16
    result = generate(pair, prompts[:1], max_new_tokens=new, stop_token_ids=[])
    plain = generate_plain(pair, prompts[:1], max_new_tokens=new, stop_token_ids=[])
    np.testing.assert_array_equal(result.tokens, plain.tokens)
    assert result.stats.acceptance_length == 16.0


def test_rows_with_different_limits_equal_each_alone():
    requests = plain_requests(pair_of(), random_prompts(62, [30, 8]))
    batch = [dataclasses.replace(r, limit=n) for r, n in zip(requests, (3, 7), strict=True)]
    together = generate_scripted(pair_of(), batch, [lambda place: place % 4] * 2)
    for slot, request in enumerate(batch):
        single = generate_scripted(pair_of(), [request], [lambda place: place % 4])
        np.testing.assert_array_equal(together.tokens[slot], single.tokens[0])
        np.testing.assert_array_equal(together.stats.accepted[slot], single.stats.accepted[0])
