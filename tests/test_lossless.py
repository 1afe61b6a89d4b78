"""Speculative greedy decoding gives the tokens of plain decoding, whatever the drafter proposes."""

import dataclasses

import numpy as np
import pytest

from tests.scripted import LENGTH, Request, generate_scripted, pair_of, plain_requests, random_prompts

LONGEST = 70
SEEDS = (0, 1, 2)  # weights of target and drafter
CALLS = 40  # of 1 to 5 requests each, per block size


@pytest.fixture(scope="module")
def pool() -> dict[int, list[Request]]:
    """Requests with their plain continuations for each pair; all prompt lengths 1 .. 70 occur."""
    lengths = np.random.default_rng(0).permutation(np.arange(1, LONGEST + 1))
    parts = np.array_split(np.concatenate([lengths, [1, LONGEST]]), len(SEEDS))
    return {
        seed: plain_requests(pair_of(seed), random_prompts(seed, part.tolist()))
        for seed, part in zip(SEEDS, parts, strict=True)
    }


def draw_right(rng: np.random.Generator, most: int):
    """The real drafter; a copy of the target; always wrong; right for k; k drawn anew; a mixture of extremes."""
    kind = rng.integers(6)
    if kind == 0:
        return None
    if kind == 1:
        return most
    if kind == 2:
        return 0
    if kind == 3:
        return int(rng.integers(1, most))
    values = rng.integers(0, most + 1, LENGTH) if kind == 4 else rng.choice([0, most], LENGTH)
    return lambda place: int(values[place])


def draw_request(rng: np.random.Generator, request: Request) -> Request:
    """A limit, and in a third of the cases a stop token from the continuation."""
    limit = int(rng.integers(1, 33))
    stop = (int(request.plain[rng.integers(limit)]),) if rng.random() < 1 / 3 else ()
    return dataclasses.replace(request, limit=limit, stop=stop)


@pytest.mark.parametrize("block", [16, 4])
def test_speculative_equals_plain(pool, block):
    rng = np.random.default_rng(block)
    served, accepted, reasons = 0, set(), set()
    for call in range(CALLS):
        seed = SEEDS[call % len(SEEDS)]
        batch = 1 + call % 5
        chosen = rng.choice(len(pool[seed]), batch, replace=False)
        requests = [draw_request(rng, pool[seed][index]) for index in chosen]
        rights = [draw_right(rng, block - 1) for _ in requests]
        result = generate_scripted(pair_of(seed, block), requests, rights)
        served += batch
        accepted |= set(np.concatenate(result.stats.accepted).tolist())
        reasons |= set(result.finish_reason)
    assert served == 120
    assert accepted == set(range(block))
    assert reasons == {"stop", "length"}


def test_every_prompt_length_with_the_real_drafter_and_its_copy(pool):
    """The lengths that the random draw may have missed: all of one pool at once, right and real in turn."""
    for seed in SEEDS:
        requests = [dataclasses.replace(request, limit=20) for request in pool[seed]]
        for first in range(0, len(requests), 8):
            group = requests[first : first + 8]
            generate_scripted(pair_of(seed), group, [15 if i % 2 else None for i in range(len(group))])
