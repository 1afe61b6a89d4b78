"""Where a request ends: stop ids at every place of a block, limits, and which of the two is told."""

import dataclasses

import numpy as np
import pytest

from tests.scripted import Request, generate_scripted, pair_of, plain_requests, random_prompts

BLOCK = 16


@pytest.fixture(scope="module")
def requests() -> list[Request]:
    return plain_requests(pair_of(), random_prompts(11, [5, 33, 12, 64, 1, 20, 3, 50]))


def first_places(request: Request) -> dict[int, int]:
    """Index of first occurrence -> token."""
    tokens = request.plain.tolist()
    return {tokens.index(token): token for token in set(tokens)}


def stop_at(requests: list[Request], wanted: int) -> Request:
    """A request whose token at index `wanted` did not occur before, with that token as its stop id."""
    for request in requests:
        token = first_places(request).get(wanted)
        if token is not None:
            return dataclasses.replace(request, stop=(token,))
    raise LookupError(f"no continuation has a fresh token at {wanted}")


def test_stop_token_at_every_place_of_a_block(requests):
    """Two cycles: the second one, all of it accepted, has the stop token as its token number `place`."""
    for first in (0, 8):
        places = range(first, first + 8)
        batch = [stop_at(requests, 6 + place) for place in places]
        result = generate_scripted(pair_of(), batch, [[4, 15]] * 8)
        for place, tokens, accepted in zip(places, result.tokens, result.stats.accepted, strict=True):
            assert len(tokens) == 7 + place
            assert tokens[-1] not in tokens[:-1]
            assert accepted.tolist() == [4, 15]
        assert result.finish_reason == ["stop"] * 8


def test_stop_token_as_the_first_token_needs_no_cycle(requests):
    batch = [dataclasses.replace(r, stop=(int(r.plain[0]), 7)) for r in requests]
    result = generate_scripted(pair_of(), batch, [15] * 8)
    assert [tokens.tolist() for tokens in result.tokens] == [[r.plain[0]] for r in requests]
    assert result.stats.cycles == (0,) * 8


def test_stop_token_inside_an_accepted_run(requests):
    """The block [a, b, EOS, c, d] is accepted whole; c and d are never seen, whatever the limit allows."""
    request = stop_at(requests, 3)
    cases = {
        6: (4, "stop"),  # limits count the first token, which the prompt's pass emitted: t0 a b EOS
        5: (4, "stop"),
        4: (4, "stop"),  # the stop token is the last that the limit allows
        3: (3, "length"),  # and here the first that it does not
        2: (2, "length"),
        1: (1, "length"),
    }
    batch = [dataclasses.replace(request, limit=limit) for limit in cases]
    result = generate_scripted(pair_of(), batch, [15] * len(batch))
    got = {
        limit: (len(tokens), reason)
        for limit, tokens, reason in zip(cases, result.tokens, result.finish_reason, strict=True)
    }
    assert got == cases


@pytest.mark.parametrize("right", [0, 4, 15])
def test_limits_are_exact(requests, right):
    limits = [1, 2, 5, 15, 16, 17, 18, 33]
    batch = [dataclasses.replace(r, limit=n) for r, n in zip(requests, limits, strict=True)]
    result = generate_scripted(pair_of(), batch, [right] * 8)
    assert [len(tokens) for tokens in result.tokens] == limits
    assert result.finish_reason == ["length"] * 8
    assert result.stats.cycles == tuple(-(-(n - 1) // (right + 1)) for n in limits)


def test_the_earliest_of_several_stop_tokens_counts(requests):
    places = sorted(first_places(requests[0]))
    tokens = [first_places(requests[0])[place] for place in places]
    batch = [
        dataclasses.replace(requests[0], stop=(tokens[9], tokens[4], tokens[6])),
        dataclasses.replace(requests[0], stop=(tokens[6], tokens[9])),
    ]
    result = generate_scripted(pair_of(), batch, [15, 2])
    assert [len(t) for t in result.tokens] == [places[4] + 1, places[6] + 1]


def test_rows_that_end_early_leave_the_others_alone(requests):
    """One request ends at once, one in its first block, one after three; the last goes on for long."""
    batch = [
        dataclasses.replace(requests[0], limit=1),
        stop_at(requests, 7),
        dataclasses.replace(requests[2], limit=40),
        requests[3],
    ]
    result = generate_scripted(pair_of(), batch, [15, 15, 15, lambda place: place % 3])
    assert [len(t) for t in result.tokens] == [1, 8, 40, 100]
    assert result.stats.cycles[:3] == (0, 1, 3)
    assert np.sum(result.stats.accepted[3] + 1) >= 99
