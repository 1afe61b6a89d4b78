"""Requests with common prefixes in random order, some cancelled and some spoilt, in a pool that is nearly too small."""

import dataclasses

import jax
import numpy as np
import pytest

from serve.engine import Handle, Request, RequestFailed
from serve.engine.device import snapshot_bytes
from tests.copying import copying_pair
from tests.engine_bench import MOST_STEPS, Bench, Plain, not_finite, poison, quick_compilation
from tests.engine_bench import REUSE as CONFIG
from tests.engine_soak import tree_of_prompts

LONGEST = 170
ROOM = 6  # snapshots
LIMIT = 12  # most new tokens


@dataclasses.dataclass(eq=False)
class Sent:
    handle: Handle
    index: int
    limit: int
    spoilt: bool = False


def spoil(bench: Bench, rng: np.random.Generator, flying: list[Sent]) -> None:
    """NaN in a slot, and in the pages that nobody else owns."""
    slot = int(rng.integers(CONFIG.slots))
    pages = bench.pages_of(slot)
    if not pages:
        return
    pool = bench.scheduler.pool
    bench.device.state = poison(bench.device.state, slot, [page for page in pages if pool.owners(page) == 1])
    handle = bench.scheduler._running[slot].handle
    next(sent for sent in flying if sent.handle is handle).spoilt = True


@pytest.mark.parametrize("seed", [0, 1])
def test_prefixes_arrivals_cancels_and_numbers_that_are_not_finite(seed):
    rng, pair = np.random.default_rng(seed), copying_pair()
    with quick_compilation():
        plain = Plain(pair, tree_of_prompts(seed, 16, LONGEST))
        budget = ROOM * snapshot_bytes(pair, CONFIG)
        bench = Bench(pair, dataclasses.replace(CONFIG, prefix_cache_bytes=budget))
        flying, over, left = [], [], 70
        for _ in range(MOST_STEPS):
            for _ in range(min(left, int(rng.integers(0, 3)))):
                index, limit = int(rng.integers(len(plain.prompts))), int(rng.integers(1, LIMIT + 1))
                flying.append(Sent(bench.submit(Request(plain.prompts[index], limit, [])), index, limit))
                left -= 1
            if flying and rng.random() < 0.05:
                flying[int(rng.integers(len(flying)))].handle.cancel()
            if rng.random() < 0.04:
                spoil(bench, rng, flying)
            bench.steps(1)
            assert bench.scheduler.prefixes.snapshots <= ROOM
            over += [sent for sent in flying if sent.handle.finished]
            flying = [sent for sent in flying if not sent.handle.finished]
            if not left and not flying:
                break

    assert len(over) == 70
    ends = [check(plain, sent) for sent in over]
    hits = sum(sent.handle.cached_tokens > 0 for sent in over)
    prefixes = bench.scheduler.prefixes
    assert ends.count("length") > 40 and ends.count("cancelled") and ends.count("failed")
    assert hits > 5 and prefixes.evictions > 5
    assert not_finite(bench.device.state) == [] == not_finite_saved(bench)
    prefixes.clear()
    bench.scheduler.audit()
    assert bench.scheduler.pool.free == CONFIG.pages


def check(plain: Plain, sent: Sent) -> str:
    """How the request ended, after a look at its tokens."""
    want, _ = plain.expected(sent.index, sent.limit)
    got = [int(token) for event in sent.handle.so_far() for token in event.tokens]
    assert got == want[: len(got)]
    try:
        finish = sent.handle.result(0).finish
    except RequestFailed:
        assert sent.spoilt
        return "failed"
    assert finish in ("length", "cancelled")
    assert len(got) == len(want) or finish == "cancelled"
    return finish


def not_finite_saved(bench: Bench) -> list[str]:
    """Of snapshots that some entry has."""
    used = sorted(bench.scheduler.prefixes._entries)
    return [
        jax.tree_util.keystr(path)
        for path, leaf in jax.tree_util.tree_leaves_with_path(bench.device.saved)
        if not np.isfinite(np.asarray(leaf)[used]).all()
    ]
