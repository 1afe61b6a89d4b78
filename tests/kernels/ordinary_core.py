"""Processor time that does not depend on how fast this machine's cores are at the moment."""

import contextlib
import statistics
import threading
import time
from collections.abc import Iterator

ADDITIONS = 20_000
ORDINARY = 0.0008  # seconds for them in CPython 3.12 where the whole suite takes 20 minutes
PAUSE = 0.1  # seconds between two looks at the core


class Stopwatch:
    """Seconds that the work inside `measured` would have taken this thread on an ordinary core."""

    seconds: float


@contextlib.contextmanager
def measured() -> Iterator[Stopwatch]:
    """A core may change its speed within a second, so another thread keeps looking while the work goes on."""
    watch, looks, done = Stopwatch(), [_look()], threading.Event()

    def keep_looking():
        while not done.wait(PAUSE):
            looks.append(_look())

    looking = threading.Thread(target=keep_looking)
    looking.start()
    start = time.thread_time()
    try:
        yield watch
    finally:
        spent = time.thread_time() - start
        done.set()
        looking.join()
    watch.seconds = spent * min(1.0, ORDINARY / statistics.fmean(looks))


def _look() -> float:
    start, total = time.thread_time(), 0
    for i in range(ADDITIONS):
        total += i
    return time.thread_time() - start
