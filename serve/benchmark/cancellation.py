"""How long the device stays busy after somebody asks to stop."""

import dataclasses
import threading
import time

import numpy as np

from dspine_jax.request import Batch
from serve.benchmark.timeline import Spread
from serve.benchmark.ways import Way


@dataclasses.dataclass(frozen=True)
class Cancellation:
    """Seconds from the request to stop until the device is free; asked at arbitrary moments of a cycle or step."""

    concurrency: int
    way: str
    seconds: Spread


def measure(way: Way, batch: Batch, *, times: int) -> Cancellation:
    """Decoding looks for the request between two dispatches; one that has begun is finished, as nothing can stop it."""
    moments = np.random.default_rng(0).uniform(1, 2, times)
    state = way.step(way.step(way.start(batch)))
    start = time.perf_counter()
    state = way.step(state)
    usual = time.perf_counter() - start
    seconds = []
    for moment in moments:
        asked: list[float] = []
        clock = threading.Timer(float(moment) * usual, lambda asked=asked: asked.append(time.perf_counter()))
        clock.start()
        while not asked:
            state = way.step(state)
        seconds.append(time.perf_counter() - asked[0])
        clock.join()
    return Cancellation(concurrency=len(batch.prompts), way=way.name, seconds=Spread.of(seconds))
