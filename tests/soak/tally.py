"""What the clients saw."""

import collections
import dataclasses
import threading


@dataclasses.dataclass
class Tally:
    """Counts by what was done and how it ended; faults are sentences."""

    outcomes: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    statuses: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    tokens: int = 0
    faults: list[str] = dataclasses.field(default_factory=list)
    down: bool = False  # the server is being killed or started: connections may break
    over: bool = False  # no client begins anything new
    _lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)

    @property
    def over_with(self) -> int:
        """Requests that have ended without a fault."""
        with self._lock:
            return self.outcomes.total()

    def ended(self, kind: str, outcome: str, *, tokens: int = 0) -> None:
        """One request is over."""
        with self._lock:
            self.outcomes[kind, outcome] += 1
            self.tokens += tokens

    def answered(self, kind: str, status: int, allowed: tuple[int, ...], retry_after: str | None = None) -> bool:
        """Whether the status is the one wanted; 503 with Retry-After is always allowed."""
        with self._lock:
            self.statuses[status] += 1
        if status == 503 and retry_after is not None:
            self.ended(kind, "refused: 503 with Retry-After")
            return False
        if status not in allowed:
            self.fault(f"{kind}: status {status}, wanted one of {allowed}")
            return False
        return status == allowed[0]

    def fault(self, what: str) -> None:
        """Something that must not happen."""
        with self._lock:
            self.faults.append(what)
