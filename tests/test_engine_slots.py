"""Slots, step by step: turns of prompts and cycles, hygiene, and numbers that are not finite."""

import dataclasses

import jax
import numpy as np
import pytest

from dspine_jax import SamplingParams
from serve.engine import EngineConfig, Request, RequestFailed
from tests.copying import copying_pair
from tests.engine_bench import PLAIN_TOKENS, Bench, Plain, not_finite, poison, quick_compilation
from tests.scripted import random_prompts

CONFIG = EngineConfig(context=256, slots=2, chunk=64, pages=10)
SAMPLED = SamplingParams(temperature=1.0, seed=1)


@pytest.fixture(scope="module", autouse=True)
def quick():
    with quick_compilation():
        yield


@pytest.fixture(scope="module")
def plain() -> Plain:
    return Plain(copying_pair(), random_prompts(61, [3, 20, 64, 65, 130, 180]))


@pytest.fixture
def bench():
    bench = Bench(copying_pair(), CONFIG)
    yield bench
    assert bench.scheduler.pool.in_use == 0 and bench.scheduler.free_slots == CONFIG.slots
    assert not_finite(bench.device.state) == []


def send(bench: Bench, plain: Plain, index: int, limit: int = PLAIN_TOKENS, sampling: SamplingParams | None = None):
    return bench.submit(Request(plain.prompts[index], limit, [], sampling or SamplingParams()))


def check(plain: Plain, handle, index: int, limit: int = PLAIN_TOKENS) -> None:
    result = handle.result(0)
    assert (result.tokens.tolist(), result.finish) == plain.expected(index, limit)


def spoil(bench: Bench, slot: int, pages=None) -> None:
    pages = bench.pages_of(slot) if pages is None else pages
    bench.device.state = poison(bench.device.state, slot, pages)


def test_a_long_prompt_stalls_nobody_for_more_than_a_chunk(bench, plain):
    running = send(bench, plain, 0)
    bench.steps(2)
    long, seen = send(bench, plain, 5), len(running.so_far())
    for step in range(1, 4):  # 180 tokens are three chunks
        assert not long.so_far()
        bench.steps(1)
        assert len(running.so_far()) == seen + step
    assert len(long.so_far()) == 1
    bench.finish()
    check(plain, running, 0)
    check(plain, long, 5)


def test_prompts_take_turns(bench, plain):
    long, short = send(bench, plain, 5, 20), send(bench, plain, 0, 20)
    bench.steps(2)
    assert short.so_far() and not long.so_far()
    bench.finish()
    check(plain, long, 5, 20)
    check(plain, short, 0, 20)


def test_short_prompts_after_a_long_one_in_the_same_slot(bench, plain):
    for index in (5, 0, 4, 0, 2):
        handle = send(bench, plain, index, 30)
        bench.finish()
        check(plain, handle, index, 30)


def test_a_cycle_works_in_place(bench, plain):
    """Neither the pages nor anything else of the state is held twice, whichever bucket runs."""
    handles = [send(bench, plain, 0), send(bench, plain, 4)]
    held = {leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(bench.device.state)}
    while bench.scheduler.running or len(bench.line):
        bench.steps(1)
        assert {leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(bench.device.state)} == held
    assert handles[0].finished


@pytest.mark.parametrize("sampling", [SamplingParams(), SAMPLED], ids=["greedy", "sampled"])
def test_numbers_that_are_not_finite_end_one_request_alone(bench, plain, sampling):
    """And the next one in its slot, on its pages, is none the worse."""
    bad, good = send(bench, plain, 4, sampling=sampling), send(bench, plain, 5)
    bench.steps(6)
    pages = bench.pages_of(0)
    assert pages and not bad.finished
    before = len(bad.so_far())
    spoil(bench, 0)
    bench.steps(1)
    with pytest.raises(RequestFailed, match="finite"):
        bad.result(0)
    assert [len(event.tokens) for event in bad.so_far()[before:]] == [0]
    assert not_finite(bench.device.state) == []
    following = send(bench, plain, 3)
    bench.steps(1)
    assert bench.pages_of(0) == pages[: len(bench.pages_of(0))]
    bench.finish()
    check(plain, good, 5)
    check(plain, following, 3)


def test_a_prompt_with_numbers_that_are_not_finite_fails_when_it_is_read(bench, plain):
    bad = send(bench, plain, 5)
    bench.steps(1)
    spoil(bench, 0)
    good = send(bench, plain, 1)
    bench.finish()
    with pytest.raises(RequestFailed, match="finite"):
        bad.result(0)
    assert sum(len(event.tokens) for event in bad.so_far()) == 0
    check(plain, good, 1)


def test_a_prompt_that_is_cancelled_leaves_nothing_behind(bench, plain):
    """Nobody has looked at its numbers by then."""
    bad = send(bench, plain, 5)
    bench.steps(1)
    spoil(bench, 0)
    bad.cancel()
    following = send(bench, plain, 0)
    bench.steps(1)
    assert bad.result(0).finish == "cancelled"
    assert not_finite(bench.device.state) == []
    bench.finish()
    check(plain, following, 0)


def test_what_lies_in_a_free_slot_does_not_matter(bench, plain):
    """Neither to the request that comes into it nor to one that runs beside it."""
    running = send(bench, plain, 1)
    bench.steps(3)
    spoil(bench, 1, pages=[])
    bench.steps(2)
    entering = send(bench, plain, 0)
    bench.finish()
    check(plain, running, 1)
    check(plain, entering, 0)


@pytest.mark.parametrize("sampling", [SamplingParams(), SAMPLED], ids=["greedy", "sampled"])
def test_a_broken_drafter_never_makes_a_wrong_token(bench, plain, sampling):
    """A greedy request goes on, slowly; a sampled one, whose draws would be spoilt, ends."""
    handle = send(bench, plain, 1, sampling=sampling)
    bench.steps(2)
    state = bench.device.state
    rings = jax.tree.map(lambda x: x.at[0].set(np.nan), state.draft_cache)
    bench.device.state = dataclasses.replace(state, draft_cache=rings)
    bench.finish()
    if sampling.sampled:
        with pytest.raises(RequestFailed, match="finite"):
            handle.result(0)
    else:
        check(plain, handle, 1)


def test_cancelling_frees_slot_and_pages_at_the_next_step(bench, plain):
    handle, other = send(bench, plain, 4), send(bench, plain, 0)
    bench.steps(5)
    handle.cancel()
    assert not handle.finished
    bench.steps(1)
    result = handle.result(0)
    assert result.finish == "cancelled"
    assert result.tokens.tolist() == plain.expected(4, len(result.tokens))[0]
    assert bench.scheduler.running == 1 and bench.pages_of(0) == []
    bench.finish()
    check(plain, other, 0)
