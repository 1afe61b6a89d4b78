"""What is noted while one request is answered, for metrics and for the log."""

import time
from typing import Any

from serve.http.metrics import Metrics


class Observation:
    """`facts` go to the request's line in the log."""

    def __init__(self, metrics: Metrics, facts: dict[str, Any]):
        self._metrics = metrics
        self._facts = facts
        self._start = time.perf_counter()
        self._last: dict[int, float] = {}  # choice: when its last event came
        self._ended = False

    def event(self, choice: int) -> None:
        """An event of a choice came."""
        now = time.perf_counter()
        if not self._last:
            self._metrics.first_token.observe(now - self._start)
            self._facts["first_token_seconds"] = round(now - self._start, 4)
        elif choice in self._last:
            self._metrics.request_cycle.observe(now - self._last[choice])
        self._last[choice] = now

    def end(self, outcome: str, **counts: int) -> None:
        """The request is over; only the first call counts."""
        if not self._ended:
            self._ended = True
            self._facts.update(counts, outcome=outcome)
            self._metrics.latency.observe(time.perf_counter() - self._start)
