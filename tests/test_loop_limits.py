"""Lengths at the edges of chunks, pages, capacity buckets and the context."""

import numpy as np
import pytest

from dspine_jax.buckets import MIN_CAPACITY, PAGE, PREFILL_CHUNK
from dspine_jax.generate import generate, generate_plain
from dspine_jax.request import check_requests
from tests.copying import copying_pair
from tests.scripted import TARGET, TOKENS, generate_scripted, pair_of, plain_requests, random_prompts


@pytest.mark.parametrize("right", [None, 15, lambda place: (5 * place) % 16])
def test_prompts_at_the_edges_of_pages_and_chunks(right):
    lengths = [PAGE - 1, PAGE, PAGE + 1, PREFILL_CHUNK - 1, PREFILL_CHUNK, PREFILL_CHUNK + 1, 139, 140]
    assert lengths[-1] + TOKENS == TARGET.max_position_embeddings  # the last ends with the context and the pages
    requests = plain_requests(pair_of(), random_prompts(51, lengths))
    result = generate_scripted(pair_of(), requests, [right] * 8)
    assert [len(tokens) for tokens in result.tokens] == [TOKENS] * 8


@pytest.mark.parametrize("room", [-1, 0, 1])
def test_lengths_around_a_capacity_bucket(room):
    """Prompt, continuation and one block of slack fill a bucket but for one position, just so, or by one too many."""
    pair = copying_pair()
    new = 40
    prompt = random_prompts(52, [MIN_CAPACITY - pair.drafter_config.block_size - new + room])
    got = generate(pair, prompt, max_new_tokens=new, stop_token_ids=[])
    want = generate_plain(pair, prompt, max_new_tokens=new, stop_token_ids=[])
    np.testing.assert_array_equal(got.tokens, want.tokens)
    assert got.finish_reason == want.finish_reason == ["length"]
    assert got.stats.acceptance_length > 1


def test_nothing_longer_than_the_context_is_accepted():
    """The longest request that fits is served above."""
    check_requests(TARGET, [[0] * 140], TOKENS, None)
    with pytest.raises(ValueError, match=r"prompt 1 has 141 tokens .*: 241 in all, but the model's context is 240"):
        check_requests(TARGET, [[0], [0] * 141], TOKENS, None)
