"""A request that goes on from a prefix of an earlier prompt equals one that reads everything, bit for bit."""

import dataclasses
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dspine_jax import SamplingParams
from dspine_jax.cache.paged_kv import PagedKV
from dspine_jax.loop.lanes import take_lanes
from dspine_jax.planning.memory import bytes_of
from serve.engine import Handle, Request, RequestFailed
from serve.engine.device import snapshot_bytes, snapshot_room
from tests.copying import copying_pair
from tests.engine_bench import REUSE as CONFIG
from tests.engine_bench import Bench, not_finite, poison, quick_compilation
from tests.scripted import random_prompts

CHUNK = CONFIG.chunk
SAMPLINGS = {
    "greedy": SamplingParams(),
    "sampled": SamplingParams(temperature=1.0, top_p=0.95, seed=3, logprobs=2),
    "penalties": SamplingParams(temperature=0.8, repetition_penalty=1.3, frequency_penalty=0.5, seed=4, min_tokens=9),
    "greedy_logprobs": SamplingParams(presence_penalty=0.4, logprobs=4),
}


@pytest.fixture(scope="module", autouse=True)
def quick() -> Iterator[None]:
    with quick_compilation():
        yield


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench(copying_pair(), CONFIG)
    yield bench
    check_nothing_leaks(bench)


@pytest.fixture
def cold() -> Bench:
    """Keeps no prefixes."""
    return Bench(copying_pair(), dataclasses.replace(CONFIG, prefix_cache_bytes=0))


def check_nothing_leaks(bench: Bench) -> None:
    pool, prefixes = bench.scheduler.pool, bench.scheduler.prefixes
    assert (pool.in_use, bench.scheduler.free_slots) == (0, bench.config.slots)
    prefixes.clear()
    bench.scheduler.audit()
    assert (pool.free, prefixes.snapshots) == (pool.total, 0)
    assert not_finite(bench.device.state) == []


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return random_prompts(seed, [length])[0]


def send(bench: Bench, prompt: list[int], limit: int = 20, sampling: str = "greedy") -> Handle:
    return bench.submit(Request(prompt, limit, [], SAMPLINGS[sampling]))


def run(bench: Bench, prompt: list[int], limit: int = 20, sampling: str = "greedy") -> Handle:
    handle = send(bench, prompt, limit, sampling)
    bench.finish()
    return handle


def step_until(bench: Bench, condition: Callable[[], object]) -> None:
    for _ in range(20):
        if condition():
            return
        bench.steps(1)
    raise AssertionError("it never came true")


def carried(bench: Bench, slot: int) -> dict[str, np.ndarray]:
    """All that the device knows of a slot, but in which pages its keys and values are."""
    state = bench.device.state
    lane = take_lanes(state, jnp.asarray([slot]))
    found = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(lane):
        found[jax.tree_util.keystr(path)] = np.asarray(leaf)
    del found[".target_cache.page_table"]
    position = int(lane.position[0])
    table = np.asarray(lane.target_cache.page_table[0])
    for index, layer in enumerate(state.target_cache.layers):
        if isinstance(layer, PagedKV):
            for name, pages in (("k", layer.k), ("v", layer.v)):
                rows = np.asarray(pages)[table]
                found[f".target_cache.layers[{index}].{name}"] = rows.reshape(-1, *rows.shape[2:])[:position]
    return found


def check_same_slot(bench: Bench, slot: int, other: Bench) -> None:
    got, want = carried(bench, slot), carried(other, 0)
    assert got.keys() == want.keys()
    for path, x in want.items():
        np.testing.assert_array_equal(got[path], x, err_msg=path)


def check_same(got: Handle, want: Handle) -> None:
    """Tokens, origins, what each cycle accepted, logprobs."""
    mine, other = got.result(0), want.result(0)
    assert mine.tokens.tolist() == other.tokens.tolist()
    assert (mine.finish, mine.origins, mine.accepted) == (other.finish, other.origins, other.accepted)
    assert (mine.logprobs is None) == (other.logprobs is None)
    if mine.logprobs is not None and other.logprobs is not None:
        for field in dataclasses.fields(mine.logprobs):
            np.testing.assert_array_equal(getattr(mine.logprobs, field.name), getattr(other.logprobs, field.name))


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_conversation_equals_the_same_one_read_from_the_start(bench, cold, sampling):
    """Four turns; each prompt is the one before, its answer, and something new."""
    prompt, cached = prompt_of(50), 0
    for turn in range(4):
        handle, other = run(bench, prompt, 20, sampling), run(cold, prompt, 20, sampling)
        check_same(handle, other)
        assert (handle.cached_tokens, other.cached_tokens) == (cached, 0)
        cached = len(prompt) // CHUNK * CHUNK
        prompt = prompt + handle.result(0).tokens.tolist() + prompt_of(13 + turn, seed=turn)
    assert cached == 128


@pytest.mark.parametrize("sampling", ["greedy", "sampled"])
@pytest.mark.parametrize("more", [0, 1, CHUNK, 40])
def test_the_slot_is_the_same_bit_for_bit(bench, cold, sampling, more):
    """Between two chunks, after the first cycle and after later ones; in another slot, beside another request."""
    prefix = prompt_of(2 * CHUNK)
    run(bench, prefix, 30, sampling)
    neighbour = send(bench, prompt_of(100, seed=5), 1)
    bench.steps(1)
    prompt = prefix + prompt_of(more, seed=6)
    handle, other = send(bench, prompt, 30, sampling), send(cold, prompt, 30, sampling)
    if more > CHUNK:
        cold.steps(3)
        step_until(bench, lambda: int(bench.device.state.position[1]) == 3 * CHUNK)
        check_same_slot(bench, 1, cold)
    step_until(bench, handle.so_far)
    step_until(cold, other.so_far)
    assert not neighbour.so_far()  # it reads, so no bucket but that of one slot has run
    neighbour.cancel()
    check_same_slot(bench, 1, cold)
    for _ in range(2):
        cold.steps(1)
        bench.steps(1)
        check_same_slot(bench, 1, cold)
    cold.finish()
    bench.finish()
    check_same(handle, other)
    assert handle.cached_tokens == 2 * CHUNK


def test_prompts_that_end_at_a_boundary_or_beside_it(bench, cold):
    whole = prompt_of(100)
    assert run(bench, whole).cached_tokens == 0
    for length, cached in ((95, 0), (96, 96), (97, 96), (64, 64), (65, 64), (63, 0), (100, 96), (32, 32), (31, 0)):
        handle = run(bench, whole[:length])
        check_same(handle, run(cold, whole[:length]))
        assert (length, handle.cached_tokens) == (length, cached)
    other = [(whole[95] + 1) % 96]
    handle = run(bench, whole[:95] + other)
    check_same(handle, run(cold, whole[:95] + other))
    assert handle.cached_tokens == 64


def test_what_many_prompts_begin_with_is_read_twice(bench, cold):
    """The second request leaves the snapshot where it parts with the first; the others find it."""
    system = prompt_of(70)
    cached = []
    for seed in range(4):
        prompt = system + prompt_of(60, seed=10 + seed)
        handle = run(bench, prompt, sampling="sampled")
        check_same(handle, run(cold, prompt, sampling="sampled"))
        cached.append(handle.cached_tokens)
    assert cached == [0, 0, 64, 64]


def test_two_requests_read_the_same_pages_while_they_generate(bench, cold):
    prefix = prompt_of(64)
    prompts = [prefix + prompt_of(length, seed=length) for length in (1, 10, 20)]
    run(bench, prefix)
    handles = [send(bench, prompt, 20) for prompt in prompts]
    bench.steps(3)
    tables = [bench.pages_of(slot) for slot in range(3)]
    assert tables[0][:4] == tables[1][:4] == tables[2][:4]
    apart = [page for table in tables for page in table[4:]]
    assert len(set(apart)) == len(apart) and not set(apart) & set(tables[0][:4])
    assert bench.scheduler.pool.in_use == 4 + len(apart)
    before = kept_numbers(bench, tables[0][:4])
    handles[0].cancel()
    bench.scheduler.prefixes.clear()  # two slots have them still
    bench.finish()
    for page in tables[0][:4]:
        assert not bench.scheduler.pool.owners(page)
    for got, want in zip(kept_numbers(bench, tables[0][:4]), before, strict=True):
        np.testing.assert_array_equal(got, want)
    for handle, prompt in list(zip(handles, prompts, strict=True))[1:]:
        want = run(cold, prompt, 20).result(0)
        assert (handle.result(0).tokens.tolist(), handle.cached_tokens) == (want.tokens.tolist(), 64)


def kept_numbers(bench: Bench, pages: list[int]) -> list[np.ndarray]:
    layers = bench.device.state.target_cache.layers
    return [np.asarray(x)[pages] for layer in layers if isinstance(layer, PagedKV) for x in (layer.k, layer.v)]


def test_requests_that_read_the_same_prompt_at_a_time(bench, cold):
    prompt = prompt_of(40)
    handles = [send(bench, prompt, 10) for _ in range(3)]
    bench.steps(1)
    assert bench.scheduler.running == 3
    bench.finish()
    want = run(cold, prompt, 10).result(0).tokens.tolist()
    assert [handle.result(0).tokens.tolist() for handle in handles] == [want] * 3
    assert [handle.cached_tokens for handle in handles] == [0, 0, 0]
    assert bench.scheduler.prefixes.entries == 1


@pytest.mark.parametrize("room", [1, 2])
def test_a_tiny_budget(cold, room):
    each = snapshot_bytes(copying_pair(), CONFIG)
    bench = Bench(copying_pair(), dataclasses.replace(CONFIG, prefix_cache_bytes=each * (room + 1) - 1))
    assert bench.device.snapshots == room and bytes_of(bench.device.saved) == room * each
    prompts = [prompt_of(70, seed=seed) for seed in range(3)]
    cached = []
    for turn in (0, 0, 1, 2, 1, 0, 0, 2):
        handle = run(bench, prompts[turn])
        check_same(handle, run(cold, prompts[turn]))
        cached.append(handle.cached_tokens)
        assert bench.scheduler.prefix_bytes <= room * each
    assert cached == [[0, 64, 0, 0, 0, 0, 64, 0], [0, 64, 0, 0, 64, 0, 64, 0]][room - 1]
    assert bench.scheduler.prefixes.evictions == [5, 3][room - 1]
    check_nothing_leaks(bench)


def test_prefixes_give_way_to_a_request_that_needs_their_pages(bench, cold):
    """But not those that it goes on from, nor those of a request that runs."""
    pool, prefixes = bench.scheduler.pool, bench.scheduler.prefixes
    first, second, third = (prompt_of(64, seed=seed) for seed in range(3))
    for prompt in (first, second, third):
        run(bench, prompt)
    assert (pool.idle, pool.free) == (12, 6)
    prompts = [first + prompt_of(40, seed=3), [*third, 5], prompt_of(200, seed=4)]
    handles = [send(bench, prompt, 40) for prompt in prompts]
    bench.steps(1)
    # 11 pages, 4 of them the first prompt's: the second prompt had to go. 8 pages, 4 of them the third prompt's.
    assert [handle.cached_tokens for handle in handles] == [64, 64, 0]
    assert (pool.in_use, pool.idle, prefixes.entries, prefixes.evictions) == (18 - pool.free, 0, 2, 1)
    bench.finish()
    assert prefixes.evictions > 1  # the last needs 16 pages of 18
    for handle, prompt in zip(handles, prompts, strict=True):
        assert handle.result(0).tokens.tolist() == run(cold, prompt, 40).result(0).tokens.tolist()


def test_a_prompt_with_numbers_that_are_not_finite_leaves_no_prefix(bench, cold):
    prompt = prompt_of(100)
    handle = send(bench, prompt)
    bench.steps(2)
    spoil(bench, 0)
    bench.finish()
    with pytest.raises(RequestFailed, match="finite"):
        handle.result(0)
    assert (bench.scheduler.prefixes.entries, bench.scheduler.pool.idle) == (0, 0)
    assert not_finite(bench.device.state) == []
    for cached in (0, 96):
        handle = run(bench, prompt)
        check_same(handle, run(cold, prompt))
        assert handle.cached_tokens == cached


def test_a_request_that_fails_takes_its_prefixes_along(bench, cold):
    """Its prompt was sound when it was read, but nothing of it is trusted any more; other prefixes stay."""
    system, other = prompt_of(64), prompt_of(64, seed=1)
    for prompt in (system, other):
        run(bench, prompt)
    prompt = system + prompt_of(40, seed=2)
    handle = send(bench, prompt, 60)
    bench.steps(3)
    assert handle.so_far() and not handle.finished
    assert bench.scheduler.prefixes.entries == 3
    spoil(bench, 0, bench.pages_of(0))  # those that the cache has, too
    bench.finish()
    with pytest.raises(RequestFailed, match="finite"):
        handle.result(0)
    assert (bench.scheduler.prefixes.entries, bench.scheduler.pool.idle) == (1, 4)
    assert not_finite(bench.device.state) == []
    for again, cached in ((prompt, 0), (system, 0), (other, 64)):
        handle = run(bench, again)
        check_same(handle, run(cold, again))
        assert handle.cached_tokens == cached


def test_pages_that_a_failed_request_shared_are_zeroed_after_their_last_reader(bench, cold):
    prefix = prompt_of(64)
    run(bench, prefix)
    failing, sound = send(bench, [*prefix, 1], 40), send(bench, [*prefix, 2], 40)
    bench.steps(3)
    spoil(bench, 0, bench.pages_of(0)[4:])
    shared = bench.pages_of(0)[:4]
    bench.steps(1)
    assert failing.finished and not sound.finished
    assert bench.scheduler.prefixes.entries == 0
    assert all(np.asarray(x).any() for x in kept_numbers(bench, shared))
    bench.finish()
    assert not any(np.asarray(x).any() for x in kept_numbers(bench, shared))
    assert sound.result(0).tokens.tolist() == run(cold, [*prefix, 2], 40).result(0).tokens.tolist()


def test_a_prompt_that_is_cancelled_while_it_is_read_leaves_no_prefix(bench, cold):
    prompt = prompt_of(100)
    handle = send(bench, prompt)
    bench.steps(3)
    assert bench.scheduler.prefixes.snapshots == 1  # taken, but in no entry yet
    spoil(bench, 0)
    handle.cancel()
    bench.finish()
    assert (bench.scheduler.prefixes.snapshots, bench.scheduler.pool.idle) == (0, 0)
    handle = run(bench, prompt)
    check_same(handle, run(cold, prompt))
    assert handle.cached_tokens == 0


def spoil(bench: Bench, slot: int, pages: list[int] | None = None) -> None:
    """NaN in the slot, and in pages: its own if none are named."""
    if pages is None:
        pages = [page for page in bench.pages_of(slot) if bench.scheduler.pool.owners(page) == 1]
    bench.device.state = poison(bench.device.state, slot, pages)


def test_without_a_budget_there_is_no_cache(cold):
    assert [run(cold, prompt_of(70)).cached_tokens for _ in range(2)] == [0, 0]
    assert cold.device.saved is None
    check_nothing_leaks(cold)


def test_room_for_snapshots():
    pair, each = copying_pair(), snapshot_bytes(copying_pair(), CONFIG)
    device = Bench(pair, CONFIG).device
    assert bytes_of(device.saved) == each * device.snapshots
    assert device.snapshots == (CONFIG.pool(16) - 1) // 2  # the default is more than there are chunks
    assert snapshot_room(pair, dataclasses.replace(CONFIG, prefix_cache_bytes=5 * each)) == 5
    with pytest.raises(ValueError, match=f"prefix_cache_bytes is 9, but one prefix takes {each}; give that or more"):
        snapshot_room(pair, dataclasses.replace(CONFIG, prefix_cache_bytes=9))
