"""Pages and sizes of an engine: all on the host."""

import numpy as np
import pytest

from dspine_jax.sampling.width import Verification
from serve.engine.config import EngineConfig
from serve.engine.pages import PagePool
from serve.engine.request import Request, check
from tests.copying import BLOCK, copying_pair


def test_no_page_has_two_owners_and_page_0_has_none():
    pool, rng, owned = PagePool(40), np.random.default_rng(0), []
    for _ in range(500):
        if owned and rng.random() < 0.5:
            pool.release(owned.pop(int(rng.integers(len(owned)))))
        elif (pages := pool.allocate(int(rng.integers(1, 9)))) is not None:
            owned.append(pages)
        held = [page for pages in owned for page in pages]
        assert len(set(held)) == len(held) == pool.in_use
        assert 0 not in held and all(page < 40 for page in held)
    for pages in owned:
        pool.release(pages)
    assert pool.in_use == 0
    assert sorted(pool.allocate(39) or ()) == list(range(1, 40))


def test_too_many_pages_take_none():
    pool = PagePool(5)
    assert pool.allocate(5) is None
    assert pool.in_use == 0
    assert pool.allocate(4) is not None


def test_a_shared_page_is_free_after_its_last_owner():
    pool = PagePool(5)
    pages = pool.allocate(3)
    assert pages is not None
    pool.share(pages[:2])
    assert pool.release(pages) == pages[2:]
    assert pool.in_use == 2
    assert pool.release(pages[:2]) == pages[:2]
    assert pool.in_use == 0


def test_a_page_is_not_released_twice_and_a_free_one_not_shared():
    pool = PagePool(5)
    pages = pool.allocate(2)
    assert pages is not None
    pool.release(pages)
    with pytest.raises(ValueError, match="free already"):
        pool.release(pages[:1])
    with pytest.raises(ValueError, match="are free"):
        pool.share(pages)
    assert pool.in_use == 0


def test_buckets_are_powers_of_two_and_all_slots():
    assert EngineConfig(context=64).buckets == (1, 2, 4, 8)
    assert EngineConfig(context=64, slots=1).buckets == (1,)
    assert EngineConfig(context=64, slots=6).buckets == (1, 2, 4, 6)
    config = EngineConfig(context=64)
    assert [config.bucket(n) for n in range(1, 9)] == [1, 2, 4, 4, 8, 8, 8, 8]


def test_every_slot_can_hold_a_whole_context_unless_pages_are_fewer():
    config = EngineConfig(context=256)
    assert config.pages_per_slot(16) == 5  # one block past 256 positions
    assert config.pool(16) == 1 + 8 * 5
    assert EngineConfig(context=256, pages=12).pool(16) == 13


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"context": 1}, "context is 1, wanted an integer, at least 2"),
        ({"context": 64, "slots": 0}, "slots is 0"),
        ({"context": 64, "slots": 257}, "at most 256"),
        ({"context": 64, "slots": True}, "slots is True"),
        ({"context": 64, "chunk": 100}, "wanted a chunk of whole pages"),
        ({"context": 64, "queue_limit": -1}, "queue_limit is -1"),
        ({"context": 64, "queue_timeout": 0}, "queue_timeout is 0"),
        ({"context": 64, "queue_timeout": float("nan")}, "queue_timeout is nan"),
        ({"context": 64, "max_logprobs": 65}, "at most 64"),
        ({"context": 64, "prefix_cache_bytes": -1}, "prefix_cache_bytes is -1"),
        ({"context": 64, "verification": Verification("token", (2, 4))}, "one fixed width"),
    ],
)
def test_impossible_sizes_are_refused(sizes, message):
    with pytest.raises(ValueError, match=message):
        EngineConfig(**sizes)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"context": 512}, "context is 512, but the model's is 496"),
        ({"context": 64, "pages": 0}, "the shortest request needs 1"),
        ({"context": 64, "verification": Verification("token", (17,))}, "from 2 to 16"),
    ],
)
def test_sizes_that_the_pair_cannot_have_are_refused(sizes, message):
    with pytest.raises(ValueError, match=message):
        EngineConfig(**sizes).check(copying_pair())


def test_a_request_is_counted_in_its_worst_case():
    config = EngineConfig(context=256, slots=2, pages=4)
    for prompt, new, pages in ((1, 1, 1), (40, 8, 1), (40, 9, 2), (200, 40, 4)):
        assert BLOCK == 16
        assert check(Request([2] * prompt, new), copying_pair(), config).pages == pages


@pytest.mark.parametrize(
    ("prompt", "new", "message"),
    [
        ([], 5, "non-empty"),
        ([96], 5, "wanted 0 to 95"),
        ([2], 0, "max_new_tokens is 0"),
        ([2] * 250, 7, "257 in all, but this engine's context is 256"),
        ([2] * 240, 16, "needs 5 pages of 64 positions, but the engine has 4"),
    ],
)
def test_a_request_that_can_never_be_served_is_refused(prompt, new, message):
    config = EngineConfig(context=256, slots=2, pages=4)
    with pytest.raises(ValueError, match=message):
        check(Request(prompt, new), copying_pair(), config)


def test_a_page_that_only_the_cache_keeps_is_idle():
    pool = PagePool(6)
    pages = pool.allocate(3)
    assert pages is not None
    pool.keep(pages[:2])
    assert (pool.in_use, pool.idle, pool.free) == (3, 0, 2)
    assert pool.release(pages) == pages[2:]
    assert (pool.in_use, pool.idle, pool.free) == (0, 2, 3)
    pool.share(pages[:1])
    assert (pool.in_use, pool.idle) == (1, 1)
    assert pool.drop(pages[:2]) == pages[1:2]
    assert (pool.in_use, pool.idle, pool.free) == (1, 0, 4)
    pool.audit({pages[0]: 1}, [])
    assert pool.release(pages[:1]) == pages[:1]
    pool.audit({}, [])


def test_the_cache_keeps_a_page_once_and_slots_cannot_give_it_away():
    pool = PagePool(6)
    pages = pool.allocate(2)
    assert pages is not None
    pool.keep(pages)
    with pytest.raises(ValueError, match="kept already"):
        pool.keep(pages)
    pool.release(pages)
    with pytest.raises(ValueError, match="the prefix cache's alone"):
        pool.release(pages)
    pool.drop(pages)
    with pytest.raises(ValueError, match="are not kept"):
        pool.drop(pages)
    with pytest.raises(ValueError, match="are free or kept"):
        pool.keep(pages)
    pool.audit({}, [])


def test_a_spoilt_page_is_zeroed_when_its_last_owner_is_gone():
    pool = PagePool(6)
    pages = pool.allocate(3)
    assert pages is not None
    pool.keep(pages[:1])
    pool.share(pages[1:2])
    pool.spoil(pages)
    pool.release(pages)
    assert pool.take_spoilt() == pages[2:]
    pool.drop(pages[:1])
    pool.release(pages[1:2])
    with pytest.raises(RuntimeError, match="spoilt and free"):
        pool.audit({}, [])
    assert pool.take_spoilt() == pages[:2]
    assert pool.take_spoilt() == ()


@pytest.mark.parametrize(
    ("slots", "kept"),
    [({}, [1]), ({1: 1}, []), ({1: 2}, [1]), ({1: 1}, [1, 1]), ({1: 1, 2: 1}, [1]), ({1: 1}, [2])],
)
def test_wrong_owners_are_noticed(slots, kept):
    pool = PagePool(4)
    assert pool.allocate(1) == (1,)
    pool.keep([1])
    pool.audit({1: 1}, [1])
    with pytest.raises(RuntimeError, match="pages do not add up"):
        pool.audit(slots, kept)
