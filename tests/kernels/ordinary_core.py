"""Processor time that does not depend on how fast this machine's cores are today."""

import time

ADDITIONS = 500_000
ORDINARY = 0.027  # seconds for them in CPython 3.12: a server's core in a good moment


def ordinary_seconds(seconds: float) -> float:
    """What `seconds` of this thread, just spent, would have been on an ordinary core; not more than they were."""
    start, total = time.thread_time(), 0
    for i in range(ADDITIONS):
        total += i
    return seconds * min(1.0, ORDINARY / (time.thread_time() - start))
