"""Many requests through one engine, in random order, each compared with plain decoding.

Many prompts begin alike. `python -m tests.engine_soak` runs 500 requests, with few pages and snapshots, and prints what
the memory did.
"""

import argparse
import contextlib
import dataclasses
import time
from pathlib import Path

import jax
import numpy as np

from dspine_jax.pair import Pair
from serve.engine import Engine, EngineConfig, Handle, QueueFull, Request
from serve.engine.device import snapshot_bytes
from tests.copying import copying_pair
from tests.engine_bench import PLAIN_TOKENS, Plain, quick_compilation
from tests.scripted import random_prompts

# However slow the machine is, nobody here waits too long.
CONFIG = EngineConfig(context=256, chunk=64, queue_limit=4, queue_timeout=3600)
LONGEST = CONFIG.context - PLAIN_TOKENS
PAGES, SNAPSHOTS = 30, 10  # of the 40 and 40 that there would be
ALIKE = 0.7  # share of prompts that begin like an earlier one
CANCELLED = 0.15  # share of requests
MOST_ARRIVALS = 4  # at a time


@dataclasses.dataclass(eq=False)
class Sent:
    """A request on its way, what it must give, and after how many events it is cancelled."""

    handle: Handle
    tokens: list[int]
    finish: str
    cancel_after: int | None


@dataclasses.dataclass
class Tally:
    """What became of the requests."""

    finished: int = 0
    cancelled: int = 0
    differences: int = 0
    refused: int = 0
    most_running: int = 0


def plain_of(pair: Pair, count: int, seed: int) -> Plain:
    """Prompts of 1 to LONGEST tokens, the shortest and the longest among them."""
    return Plain(pair, tree_of_prompts(seed, count, LONGEST))


def tree_of_prompts(seed: int, count: int, longest: int) -> list[list[int]]:
    """Prompts of 1, 2, 3, `longest` and random lengths, that part with earlier ones anywhere."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, longest + 1, count)
    lengths[:4] = 1, 2, 3, longest
    prompts = random_prompts(seed, lengths.tolist())
    for index in range(4, count):
        if rng.random() < ALIKE:
            earlier, prompt = prompts[int(rng.integers(3, index))], prompts[index]
            cut = int(rng.integers(1, min(len(earlier), len(prompt)) + 1))
            prompts[index] = earlier[:cut] + prompt[cut:]
    return prompts


def soak(engine: Engine, plain: Plain, count: int, seed: int) -> Tally:
    """Sends `count` requests, a few at a time, and checks each when it is over."""
    rng = np.random.default_rng(seed)
    tally, flying, left = Tally(), [], count
    while left or flying:
        for _ in range(min(left, int(rng.integers(1, MOST_ARRIVALS + 1)))):
            try:
                flying.append(_send(engine, plain, rng))
                left -= 1
            except QueueFull:
                tally.refused += 1
                break
        tally.most_running = max(tally.most_running, engine.stats().running)
        time.sleep(rng.uniform(0, 0.03))
        for sent in flying:
            if sent.cancel_after is not None and len(sent.handle.so_far()) >= sent.cancel_after:
                engine.cancel(sent.handle)
                sent.cancel_after = None
        flying = [sent for sent in flying if not _over(sent, tally)]
    return tally


def _send(engine: Engine, plain: Plain, rng: np.random.Generator) -> Sent:
    index, limit = int(rng.integers(len(plain.prompts))), int(rng.integers(1, PLAIN_TOKENS + 1))
    stops = rng.integers(0, engine.pair.target_config.vocab_size, int(rng.integers(0, 3))).tolist()
    tokens, finish = plain.expected(index, limit, stops)
    cancel = int(rng.integers(0, 8)) if rng.random() < CANCELLED else None
    return Sent(engine.submit(Request(plain.prompts[index], limit, stops)), tokens, finish, cancel)


def _over(sent: Sent, tally: Tally) -> bool:
    if not sent.handle.finished:
        return False
    result = sent.handle.result()
    if result.finish == "cancelled":
        tally.cancelled += 1
        tally.differences += result.tokens.tolist() != sent.tokens[: len(result.tokens)]
    else:
        tally.finished += 1
        tally.differences += (result.tokens.tolist(), result.finish) != (sent.tokens, sent.finish)
    return True


def _resident_mib() -> int:
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.split("VmRSS:")[1].split()[0]) // 1024


def main() -> None:
    """The whole test."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    jax.config.update("jax_default_matmul_precision", "highest")
    with contextlib.ExitStack() as stack:
        stack.enter_context(quick_compilation())
        pair = copying_pair()
        plain = plain_of(pair, 64, options.seed)
        budget = SNAPSHOTS * snapshot_bytes(pair, CONFIG)
        config = dataclasses.replace(CONFIG, pages=PAGES, prefix_cache_bytes=budget)
        engine = stack.enter_context(Engine(pair, config))
        total, parts = Tally(), 5
        for part in range(parts):
            start = time.perf_counter()
            tally = soak(engine, plain, options.requests // parts, options.seed + part)
            for field in dataclasses.fields(Tally):
                joined = max if field.name == "most_running" else int.__add__
                setattr(total, field.name, joined(getattr(total, field.name), getattr(tally, field.name)))
            arrays, seconds = len(jax.live_arrays()), time.perf_counter() - start
            print(f"{total}, {seconds:.1f} s, {_resident_mib()} MiB resident, {arrays} arrays", flush=True)
        stats = engine.stats()
        print(stats)
    # The engine has dropped its prefixes, too.
    last = engine.stats()
    left = last.running or last.pages_in_use or last.pages_idle or last.prefix_bytes
    if total.differences or left or stats.compilations or not (stats.prefix_hits and stats.prefix_evictions):
        raise SystemExit("failed: see above")


if __name__ == "__main__":
    main()
