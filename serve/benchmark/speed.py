"""Both ways of decoding at one concurrency, in turn, and the warm-up before it."""

import dataclasses
import time
from collections.abc import Mapping, Sequence

import jax
import numpy as np

from dspine_jax.request import Batch
from serve.benchmark.compiling import CompileTime, compile_time
from serve.benchmark.timeline import Figures, Spread, Timeline, figures, over_repeats, ratios
from serve.benchmark.ways import Way


@dataclasses.dataclass(frozen=True)
class WaySpeed:
    """One way at one concurrency; spreads are over the repeats."""

    figures: dict[str, Spread]  # by the names of `timeline.Figures`: one dispatch and one transfer per cycle or step
    one_dispatch: Spread | None  # tokens per second when all cycles or steps are one dispatch; None: not measured


@dataclasses.dataclass(frozen=True)
class WarmUp:
    """The first use of the programs of one way at one concurrency: prompt chunk, first token, step."""

    concurrency: int
    way: str
    seconds: float
    compiled: CompileTime


@dataclasses.dataclass(frozen=True)
class Speed:
    """All prompts in groups of `concurrency` requests, one group after the other."""

    concurrency: int
    ways: dict[str, WaySpeed]
    ratio: Spread  # speculative over plain, tokens per second
    ratio_one_dispatch: Spread | None


def measure(ways: Sequence[Way], batches: Sequence[Batch], *, repeats: int, one_dispatch: bool) -> Speed:
    """`ways` are speculative and plain; they alternate, so that a change of the machine meets both.

    Call `warm_up` with both before.
    """
    streamed: Mapping[str, list[Figures]] = {way.name: [] for way in ways}
    at_once: Mapping[str, list[float]] = {way.name: [] for way in ways}
    for _ in range(repeats):
        for way in ways:
            streamed[way.name].append(figures([stream(way, batch) for batch in batches]))
        for way in ways if one_dispatch else ():
            at_once[way.name].append(_one_dispatch(way, batches))
    ours, other = (way.name for way in ways)
    return Speed(
        concurrency=len(batches[0].prompts),
        ways={
            way.name: WaySpeed(
                figures=over_repeats(streamed[way.name]),
                one_dispatch=Spread.of(at_once[way.name]) if one_dispatch else None,
            )
            for way in ways
        },
        ratio=ratios(streamed[ours], streamed[other], lambda one: one.tokens_per_second),
        ratio_one_dispatch=Spread.of([a / b for a, b in zip(at_once[ours], at_once[other], strict=True)])
        if one_dispatch
        else None,
    )


def warm_up(way: Way, batch: Batch, *, one_dispatch: bool) -> WarmUp:
    """Runs every program once; what is measured later compiles nothing."""
    start = time.perf_counter()
    with compile_time() as compiled:
        state = way.step(way.start(batch))
        if one_dispatch:
            way.finish_at_once(state)
    return WarmUp(len(batch.prompts), way.name, time.perf_counter() - start, compiled())


def stream(way: Way, batch: Batch) -> Timeline:
    """Decodes a group as a server does: after each dispatch the host looks at what was emitted."""
    times, counts = [], []
    count = len(batch.prompts)
    start = time.perf_counter()
    state = way.start(batch)
    while True:
        _, emitted, limit, stopped = jax.device_get((state.tokens, state.emitted, state.limit, state.stopped))
        times.append(time.perf_counter() - start)
        counts.append(emitted[:count])
        if np.all(stopped | (emitted >= limit)):
            return Timeline(np.array(times), np.array(counts))
        state = way.step(state)


def _one_dispatch(way: Way, batches: Sequence[Batch]) -> float:
    tokens, start = 0, time.perf_counter()
    for batch in batches:
        emitted = np.asarray(way.finish_at_once(way.start(batch)).emitted)
        tokens += int(emitted[: len(batch.prompts)].sum())
    return tokens / (time.perf_counter() - start)
