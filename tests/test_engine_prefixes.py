"""The tree of prefixes that the engine can take up: all on the host."""

import numpy as np
import pytest

from serve.engine.pages import PagePool
from serve.engine.prefixes import Found, PrefixCache

CHUNK, PAGE = 4, 2


class Cache:
    """Requests that come one after the other: each allocates, leaves its snapshots and releases."""

    def __init__(self, pages: int = 40, room: int = 8):
        self.pool = PagePool(pages)
        self.prefixes = PrefixCache(self.pool, room, CHUNK, PAGE)

    def serve(self, prompt: np.ndarray) -> Found:
        """What the request found."""
        found = self.prefixes.find(prompt)
        self.pool.share(found.pages)
        if found.snapshot is not None:
            self.prefixes.use(found.snapshot)
        own = -(-len(prompt) // PAGE) - len(found.pages)
        self.prefixes.make_room(own)
        allocated = self.pool.allocate(own)
        assert allocated is not None
        pages = found.pages + allocated
        saved = []
        for length in sorted(self.prefixes.boundaries(prompt, found)):
            if (snapshot := self.prefixes.reserve()) is not None:
                saved.append((length, snapshot))
        for length, snapshot in saved:
            self.prefixes.add(prompt, length, pages, snapshot)
        self.pool.release(pages)
        self.audit()
        return found

    def audit(self) -> None:
        self.pool.audit({}, list(self.prefixes.kept()))
        self.prefixes.audit([])


def tokens(*parts: int | list[int]) -> np.ndarray:
    """A number stands for a chunk of it."""
    return np.array([x for part in parts for x in ([part] * CHUNK if isinstance(part, int) else part)], np.int32)


def lengths(cache: Cache, *prompts: np.ndarray) -> list[int]:
    return [cache.prefixes.find(prompt).length for prompt in prompts]


def test_a_longer_prompt_goes_on_where_the_last_whole_chunk_ended():
    cache = Cache()
    assert cache.serve(tokens(1, 2, [7])).length == 0
    found = cache.serve(tokens(1, 2, [7, 8, 9, 9], 3, [5]))
    assert (found.length, len(found.pages), found.known) == (8, 4, 8)
    assert cache.serve(tokens(1, 2, [7, 8, 9, 9], 3)).length == 16
    assert cache.prefixes.entries == 2
    # The whole prompt may be a prefix; one token less is not, and one that differs in its last chunk neither.
    assert lengths(cache, tokens(1, 2), tokens(1, [2, 2, 2]), tokens(1, [2, 2, 2, 3]), tokens(2, 1)) == [8, 0, 0, 0]
    assert lengths(cache, tokens([1]), tokens(1, 2, [7, 8, 9])) == [0, 8]


def test_where_prompts_part_the_second_leaves_a_snapshot_and_the_third_finds_it():
    cache = Cache()
    assert [cache.serve(tokens(1, 2, 3, other)).length for other in (10, 11, 12, 13)] == [0, 0, 12, 12]
    assert cache.prefixes.boundaries(tokens(1, 2, 9, 9), cache.prefixes.find(tokens(1, 2, 9, 9))) == {8, 16}
    # A prompt that ends inside what is known parts there too.
    assert cache.serve(tokens(1, 2)).length == 0
    assert lengths(cache, tokens(1, 2, 9, 9)) == [8]


def test_pages_are_kept_once_and_free_after_the_last_entry():
    cache = Cache()
    cache.serve(tokens(1, 2, 3, 10))
    assert (cache.pool.idle, cache.pool.in_use) == (8, 0)
    cache.serve(tokens(1, 2, 3, 11))
    assert cache.pool.idle == 10  # the second's own pages of the common chunks are not kept
    cache.prefixes.clear()
    cache.audit()
    assert (cache.pool.idle, cache.pool.free, cache.prefixes.entries) == (0, cache.pool.total, 0)


def test_the_entry_that_was_of_no_use_for_longest_goes_first():
    cache = Cache(room=2)
    cache.serve(tokens(1))
    cache.serve(tokens(2))
    assert cache.serve(tokens(1, [5])).length == 4
    cache.serve(tokens(3))
    assert lengths(cache, tokens(1), tokens(2), tokens(3)) == [4, 0, 4]
    assert (cache.prefixes.entries, cache.prefixes.evictions) == (2, 1)
    assert cache.pool.idle == 4


def test_an_entry_in_the_middle_goes_and_its_pages_stay_for_those_behind_it():
    cache = Cache(room=2)
    for prompt in (tokens(1), tokens(1, 2), tokens(1, 2, 3)):
        cache.serve(prompt)
    assert lengths(cache, tokens(1), tokens(1, 2), tokens(1, 2, 3)) == [0, 8, 12]
    assert cache.pool.idle == 6


def test_pages_are_made_by_dropping_leaves():
    cache = Cache(pages=13, room=8)
    for prompt in (tokens(1, 2), tokens(1, 3), tokens(4)):
        cache.serve(prompt)
    assert cache.pool.free == 4
    cache.prefixes.make_room(6)
    assert lengths(cache, tokens(1, 2), tokens(1, 3), tokens(4)) == [4, 8, 4]
    cache.prefixes.make_room(12)
    cache.audit()
    assert cache.pool.free == 12
    with pytest.raises(ValueError, match="13 pages cannot be freed"):
        cache.prefixes.make_room(13)


def test_pages_that_a_request_reads_stay_whatever_must_go():
    cache = Cache(pages=13, room=8)
    cache.serve(tokens(1, 2))
    cache.serve(tokens(3, 4))
    found = cache.prefixes.find(tokens(1, 2, 9))
    cache.pool.share(found.pages)
    cache.prefixes.make_room(8)  # the older entry frees nothing now, so the newer goes
    assert lengths(cache, tokens(1, 2), tokens(3, 4)) == [8, 0]
    with pytest.raises(ValueError, match="9 pages cannot be freed: there are 8 and 0 idle"):
        cache.prefixes.make_room(9)
    assert lengths(cache, tokens(1, 2)) == [8]
    cache.prefixes.clear()
    assert cache.pool.free == 8 and all(cache.pool.owners(page) == 1 for page in found.pages)
    assert cache.pool.release(found.pages) == found.pages


def test_an_entry_in_use_goes_when_idle_pages_lie_before_it():
    """Two requests read the same prompt at a time; the cache has the first chunk of one and the second of the other."""
    cache = Cache(pages=9, room=8)
    first, second = cache.pool.allocate(4), cache.pool.allocate(4)
    assert first is not None and second is not None
    for prompt, pages in ((tokens(1), first), (tokens(1, 2), second)):
        snapshot = cache.prefixes.reserve()
        assert snapshot is not None
        cache.prefixes.add(prompt, len(prompt), pages, snapshot)
    cache.pool.release(first)
    assert (cache.pool.idle, cache.pool.free) == (2, 2)
    cache.prefixes.make_room(4)
    assert (cache.pool.idle, cache.pool.free, cache.prefixes.entries) == (0, 4, 0)
    cache.pool.release(second)
    cache.audit()


def test_the_same_prefix_twice_is_one_entry():
    cache = Cache()
    pages = cache.pool.allocate(4)
    snapshots = [cache.prefixes.reserve() for _ in range(2)]
    assert pages is not None
    for snapshot, part in zip(snapshots, (pages[:2], pages[2:]), strict=True):
        assert snapshot is not None
        cache.prefixes.add(tokens(1), 4, part, snapshot)
    assert (cache.prefixes.entries, cache.prefixes.snapshots) == (1, 1)
    cache.pool.release(pages)
    cache.audit()


def test_a_prompt_that_is_not_to_be_trusted_takes_its_prefixes_along():
    cache = Cache()
    for prompt in (tokens(1), tokens(1, 2), tokens(1, 2, 3), tokens(1, 4), tokens(5)):
        cache.serve(prompt)
    cache.prefixes.forget(tokens(1, 2, 9))
    cache.audit()
    assert lengths(cache, tokens(1), tokens(1, 2), tokens(1, 2, 3), tokens(1, 4), tokens(5)) == [0, 0, 12, 8, 4]
    assert cache.prefixes.evictions == 0


def test_when_every_snapshot_is_reserved_there_is_none():
    cache = Cache(room=2)
    cache.serve(tokens(1))
    taken = [cache.prefixes.reserve() for _ in range(3)]
    assert sorted(taken[:2], key=str) == [0, 1] and taken[2] is None
    assert cache.prefixes.entries == 0
    cache.prefixes.audit([0, 1])
    for snapshot in (0, 1):
        cache.prefixes.give_back(snapshot)
    cache.audit()


def test_without_room_nothing_is_kept():
    cache = Cache(room=0)
    assert [cache.serve(tokens(1, 2)).length for _ in range(3)] == [0, 0, 0]
    assert cache.pool.free == cache.pool.total


@pytest.mark.parametrize("room", [1, 3, 20])
def test_random_prompts_in_a_small_pool(room):
    """Whatever is found is what some earlier prompt began with, and everything adds up after each request."""
    rng = np.random.default_rng(room)
    cache, served, hits = Cache(pages=25, room=room), set(), 0
    for _ in range(400):
        prompt = tokens(*rng.integers(0, 3, int(rng.integers(0, 6))).tolist(), rng.integers(0, 2, 3).tolist())
        found = cache.serve(prompt)
        hits += found.length > 0
        assert found.length % CHUNK == 0 and len(found.pages) == found.length // PAGE
        assert found.length == 0 or prompt[: found.length].tobytes() in served
        served |= {prompt[:end].tobytes() for end in range(CHUNK, len(prompt) + 1, CHUNK)}
        assert cache.prefixes.entries <= room
    assert hits > 20
