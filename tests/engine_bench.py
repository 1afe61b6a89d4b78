"""An engine without its thread, for tests that look at or spoil the device's state between two steps."""

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from dspine_jax.cache.paged_kv import PagedKV
from dspine_jax.generate import generate_plain
from dspine_jax.loop.state import LoopState
from dspine_jax.pair import Pair
from serve.engine.config import EngineConfig
from serve.engine.device import Device
from serve.engine.handle import Handle
from serve.engine.request import Request, check
from serve.engine.scheduler import Scheduler
from serve.engine.stats import Counters
from serve.engine.waiting import Waiting, WaitingLine

PLAIN_BATCH = 16
PLAIN_TOKENS = 64
MOST_STEPS = 1000
# For tests of prefixes: a chunk is two pages.
REUSE = EngineConfig(context=256, slots=3, chunk=32, page=16, pages=18)


@contextlib.contextmanager
def quick_compilation() -> Iterator[None]:
    """Compilation is nearly all of a test's time. The programs stay the same; their machine code is less polished."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    try:
        yield
    finally:
        jax.config.update("jax_disable_most_optimizations", before)


class Bench:
    """Slots are given lowest first, and so are pages, so that tests know who gets what."""

    def __init__(self, pair: Pair, config: EngineConfig):
        config.check(pair)
        self.pair, self.config = pair, config
        block = pair.drafter_config.block_size
        self.device = Device(pair, config)
        self.line, self.counters = WaitingLine(), Counters(block)
        self.scheduler = Scheduler(self.device, config, block, self.line, self.counters)
        self._number = 0

    def submit(self, request: Request) -> Handle:
        checked = check(request, self.pair, self.config)
        handle = Handle(self._number, checked.seed, self.line.wake)
        self._number += 1
        assert self.line.add(Waiting(handle, checked, time.monotonic() + self.config.queue_timeout), 1000)
        return handle

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.scheduler.step()
            self.scheduler.audit()

    def finish(self) -> None:
        for _ in range(MOST_STEPS):
            if not self.scheduler.running and not len(self.line):
                return
            self.steps(1)
        raise AssertionError(f"{self.scheduler.running} run and {len(self.line)} wait after {MOST_STEPS} steps")

    def pages_of(self, slot: int) -> list[int]:
        table = np.asarray(self.device.state.target_cache.page_table)[slot]
        return [int(page) for page in table if page]


def poison(state: LoopState, slot: int, pages: Sequence[int] = ()) -> LoopState:
    """NaN in every float that belongs to the slot but its sampling, and in these pages."""

    def spoil(x: jax.Array, index: int | jax.Array = slot) -> jax.Array:
        return x.at[index].set(jnp.nan) if jnp.issubdtype(x.dtype, jnp.floating) else x

    chosen = jnp.asarray(list(pages), jnp.int32)
    cache = state.target_cache
    layers = tuple(
        jax.tree.map(lambda x: spoil(x, chosen), layer) if isinstance(layer, PagedKV) else jax.tree.map(spoil, layer)
        for layer in cache.layers
    )
    return dataclasses.replace(
        state,
        target_cache=dataclasses.replace(cache, layers=layers),
        draft_cache=jax.tree.map(spoil, state.draft_cache),
        last_hidden=spoil(state.last_hidden),
        logprobs=jax.tree.map(spoil, state.logprobs),
    )


def not_finite(state: LoopState) -> list[str]:
    """Paths of arrays with a number that is not finite."""
    return [
        jax.tree_util.keystr(path)
        for path, leaf in jax.tree_util.tree_leaves_with_path(state)
        if jnp.issubdtype(leaf.dtype, jnp.floating) and not np.isfinite(np.asarray(leaf)).all()
    ]


class Plain:
    """Plain continuations of prompts, as long as any test wants them; computed in batches of one shape."""

    def __init__(self, pair: Pair, prompts: Sequence[Sequence[int]]):
        self.prompts = [list(prompt) for prompt in prompts]
        self._tokens: list[list[int]] = []
        for start in range(0, len(prompts), PLAIN_BATCH):
            part = self.prompts[start : start + PLAIN_BATCH]
            padded = part + [self.prompts[0]] * (PLAIN_BATCH - len(part))
            made = generate_plain(pair, padded, max_new_tokens=PLAIN_TOKENS, stop_token_ids=[])
            self._tokens += [tokens.tolist() for tokens in made.tokens[: len(part)]]

    def expected(self, index: int, limit: int, stops: Sequence[int] = ()) -> tuple[list[int], str]:
        """Tokens and finish reason."""
        tokens = self._tokens[index][:limit]
        for place, token in enumerate(tokens):
            if token in stops:
                return tokens[: place + 1], "stop"
        return tokens, "length"
