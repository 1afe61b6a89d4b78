"""Requests through an engine equal the same requests alone, whatever else it does."""

import functools
import gc

import jax
import numpy as np
import pytest

from dspine_jax import SamplingParams, generate
from serve.engine import Engine, Origin, Request
from serve.engine.device import snapshot_bytes
from tests.copying import BLOCK, copying_pair
from tests.engine_bench import PLAIN_TOKENS, Plain, quick_compilation
from tests.engine_soak import CONFIG, plain_of, soak
from tests.tolerances import FP32_LOGITS, assert_close

PATIENCE = 120  # seconds for any one request


@pytest.fixture(scope="module", autouse=True)
def quick():
    with quick_compilation():
        yield


@pytest.fixture(scope="module")
def plain() -> Plain:
    return plain_of(copying_pair(), 16, seed=1)


@pytest.fixture(scope="module")
def engine():
    with Engine(copying_pair(), CONFIG) as running:
        yield running


def check_idle(engine: Engine) -> None:
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.pages_in_use) == (0, 0, 0)
    assert stats.compilations == 0


def test_arrivals_cancels_and_reused_slots_change_no_token(engine, plain):
    soak(engine, plain, 4, seed=0)
    gc.collect()
    arrays = len(jax.live_arrays())
    before = engine.stats()
    tally = soak(engine, plain, 60, seed=2)
    after = engine.stats()
    assert tally.differences == 0
    assert tally.finished + tally.cancelled == 60
    assert tally.cancelled >= 1 and tally.most_running == CONFIG.slots
    check_idle(engine)
    assert after.prefix_hits - before.prefix_hits > 5  # how many depends on when requests arrive
    assert after.prefix_hits + after.prefix_misses <= after.submitted
    assert after.pages_idle > 0 and 0 < after.prefix_entries * snapshot_bytes(engine.pair, CONFIG) == after.prefix_bytes
    gc.collect()
    assert len(jax.live_arrays()) <= arrays


def test_a_whole_context_in_every_slot(engine, plain):
    prompt = plain.prompts[3]
    assert len(prompt) + PLAIN_TOKENS == CONFIG.context
    handles = [engine.submit(Request(prompt, PLAIN_TOKENS, [])) for _ in range(CONFIG.slots)]
    for handle in handles:
        assert handle.result(PATIENCE).tokens.tolist() == plain.expected(3, PLAIN_TOKENS)[0]
    check_idle(engine)


def test_a_stop_id_at_the_limit_beside_it_and_in_the_first_place(engine, plain):
    tokens, _ = plain.expected(4, PLAIN_TOKENS)
    place = next(i for i in range(8, PLAIN_TOKENS - 2) if tokens[i] not in tokens[:i])
    cases = [(tokens[place], limit) for limit in (place, place + 1, place + 2)] + [(tokens[0], 5)]
    handles = [engine.submit(Request(plain.prompts[4], limit, [stop])) for stop, limit in cases]
    results = [handle.result(PATIENCE) for handle in handles]
    for (stop, limit), result in zip(cases, results, strict=True):
        assert (result.tokens.tolist(), result.finish) == plain.expected(4, limit, [stop])
    assert [result.finish for result in results] == ["length", "stop", "stop", "stop"]
    assert [len(result.tokens) for result in results] == [place, place + 1, place + 1, 1]


SAMPLED = [
    SamplingParams(temperature=1.0, seed=3),
    SamplingParams(temperature=0.7, top_k=20, top_p=0.9, seed=3, logprobs=5),
    SamplingParams(temperature=1.3, min_p=0.05, seed=2**63 + 5, logprobs=0),
    SamplingParams(repetition_penalty=1.3, presence_penalty=0.5, logprobs=3),
    SamplingParams(temperature=0.9, frequency_penalty=0.8, seed=11, logit_bias={5: 4.0, 9: -3.0}, logprobs=20),
    SamplingParams(temperature=1.0, seed=12, min_tokens=30, bad_token_ids=[4, 5, 6]),
    SamplingParams(temperature=1.0, seed=13, allowed_token_ids=list(range(1, 30))),
    SamplingParams(logprobs=1),
]


@functools.cache
def offline():
    """All of `SAMPLED` on prompts of different lengths, by one call without an engine."""
    pair, rng = copying_pair(), np.random.default_rng(5)
    prompts = [rng.integers(0, 96, length).tolist() for length in (1, 3, 40, 64, 65, 100, 128, 150)]
    return prompts, generate(pair, prompts, max_new_tokens=PLAIN_TOKENS, sampling=SAMPLED)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_seeded_requests_equal_offline_whatever_their_neighbours(engine, plain, seed):
    """Three orders of arrival, beside greedy requests that come and go."""
    rng = np.random.default_rng(seed)
    prompts, want = offline()
    handles = {}
    for index in rng.permutation(len(SAMPLED)).tolist():
        handles[index] = engine.submit(Request(prompts[index], PLAIN_TOKENS, None, SAMPLED[index]))
        neighbour = engine.submit(Request(plain.prompts[int(rng.integers(16))], int(rng.integers(1, 20)), []))
        next(iter(neighbour))
    for index, handle in handles.items():
        result = handle.result(PATIENCE)
        assert (result.tokens.tolist(), result.finish) == (want.tokens[index].tolist(), want.finish_reason[index])
        expected = want.logprobs[index]
        if expected is None:
            assert result.logprobs is None
            continue
        assert result.logprobs is not None
        np.testing.assert_array_equal(result.logprobs.top_ids, expected.top_ids)
        assert_close("logprobs", result.logprobs.tokens, expected.tokens, FP32_LOGITS)
        assert_close("best logprobs", result.logprobs.top, expected.top, FP32_LOGITS)
    wait = engine.submit(Request([2], 1, []))
    wait.result(PATIENCE)
    assert engine.stats().compilations == 0


def test_a_request_without_a_seed_can_be_repeated_by_the_one_it_got(engine):
    first = engine.submit(Request([3, 4, 5], 30, [], SamplingParams(temperature=1.0)))
    tokens = first.result(PATIENCE).tokens.tolist()
    again = engine.submit(Request([3, 4, 5], 30, [], SamplingParams(temperature=1.0, seed=first.seed)))
    other = engine.submit(Request([3, 4, 5], 30, [], SamplingParams(temperature=1.0)))
    assert again.result(PATIENCE).tokens.tolist() == tokens
    assert other.result(PATIENCE).tokens.tolist() != tokens


def test_origins_and_counters_tell_the_same(engine, plain):
    before = engine.stats()
    handles = [engine.submit(Request(prompt, 40, [])) for prompt in plain.prompts[:8]]
    results = [handle.result(PATIENCE) for handle in handles]
    after = engine.stats()
    for handle, result in zip(handles, results, strict=True):
        assert len(result.tokens) == len(result.origins) == 40
        assert result.origins[0] == Origin.BONUS  # nothing was proposed for it
        for event in handle.so_far()[1:-1]:  # the first has the prompt's token too, the last may be cut
            last = Origin.BONUS if event.accepted == BLOCK - 1 else Origin.CORRECTION
            assert event.origins == (Origin.DRAFT,) * (event.accepted or 0) + (last,)
    origins = [origin for result in results for origin in result.origins]
    for origin in Origin:
        assert after.tokens.get(origin, 0) - before.tokens.get(origin, 0) == origins.count(origin)
    accepted = np.concatenate([result.accepted for result in results])
    histogram = np.bincount(accepted, minlength=BLOCK)
    np.testing.assert_array_equal(after.accepted - before.accepted, histogram)
    np.testing.assert_array_equal(
        after.accepted_at - before.accepted_at, [(accepted > place).sum() for place in range(BLOCK - 1)]
    )
    assert accepted.max() > 0
    assert after.finished["length"] - before.finished["length"] == 8
    cached = sum(handle.cached_tokens for handle in handles)
    assert after.prefix_tokens - before.prefix_tokens == cached
    assert after.prompt_tokens - before.prompt_tokens == sum(len(prompt) for prompt in plain.prompts[:8]) - cached
    assert after.cycle_seconds > 0 and after.chunk_cycle_seconds > 0 and after.chunk_cycles <= after.cycles


def test_one_copy_to_the_host_in_each_cycle(engine, plain, monkeypatch):
    copies, copy = [], jax.device_get
    monkeypatch.setattr(jax, "device_get", lambda x: copies.append(x) or copy(x))
    before = engine.stats().cycles
    handles = [engine.submit(Request(prompt, 20, [])) for prompt in plain.prompts[:3]]
    for handle in handles:
        handle.result(PATIENCE)
    assert len(copies) == engine.stats().cycles - before
    assert all(isinstance(x, jax.Array) for x in copies)
