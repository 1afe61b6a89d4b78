"""Requests that have no slot yet, first come first served."""

import collections
import dataclasses
import threading
import time
from collections.abc import Callable

from serve.engine.handle import Handle
from serve.engine.request import Checked


@dataclasses.dataclass(frozen=True, eq=False)
class Waiting:
    """One request, and when its patience ends on the monotonic clock."""

    handle: Handle
    request: Checked
    deadline: float


class WaitingLine:
    """The one place where callers' threads and the engine's meet."""

    def __init__(self):
        self._line: collections.deque[Waiting] = collections.deque()
        self._changed = threading.Condition()
        self._closed = False

    def __len__(self) -> int:
        return len(self._line)

    def add(self, waiting: Waiting, most: int) -> bool:
        """Joins the line, unless it has `most` requests already or was closed."""
        with self._changed:
            if self._closed or len(self._line) >= most:
                return False
            self._line.append(waiting)
            self._changed.notify_all()
            return True

    def close(self) -> None:
        """Nothing more may join."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def wake(self) -> None:
        """Lets the engine look at what has changed elsewhere."""
        with self._changed:
            self._changed.notify_all()

    def wait(self, done: Callable[[], bool]) -> None:
        """For the engine: returns when a request waits or `done()`."""
        with self._changed:
            self._changed.wait_for(lambda: self._line or done())

    def take(self, fits: Callable[[Waiting], bool]) -> Waiting | None:
        """Takes the first one if it fits. A big request at the head is not overtaken, or it might wait forever."""
        with self._changed:
            if self._line and fits(self._line[0]):
                return self._line.popleft()
            return None

    def leave(self) -> list[Waiting]:
        """Takes out whoever was cancelled or has waited too long."""
        now = time.monotonic()
        with self._changed:
            gone = [waiting for waiting in self._line if waiting.handle.cancelled or waiting.deadline <= now]
            if gone:
                self._line = collections.deque(waiting for waiting in self._line if waiting not in gone)
            return gone

    def leave_all(self) -> list[Waiting]:
        """Takes out everybody."""
        with self._changed:
            gone = list(self._line)
            self._line.clear()
            return gone
