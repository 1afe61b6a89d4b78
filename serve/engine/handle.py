"""A caller's end of a request: events as they come, for threads and for asyncio."""

import asyncio
import dataclasses
import itertools
import threading
from collections.abc import AsyncIterator, Callable, Iterator

import numpy as np

from dspine_jax.sampling.logprobs import Logprobs
from serve.engine.events import Event, FinishReason, Origin, join_logprobs


@dataclasses.dataclass(frozen=True, eq=False)
class Result:
    """A finished request as a whole."""

    tokens: np.ndarray  # int32
    origins: tuple[Origin, ...]
    logprobs: Logprobs | None
    accepted: tuple[int, ...]  # per cycle: proposals that the target agreed with
    finish: FinishReason


class Handle:
    """What `Engine.submit` returns. Events are kept, so any number of readers may iterate, at any time.

    A slow reader holds up nobody: the engine never waits for one.
    """

    def __init__(self, number: int, seed: int | None, wake: Callable[[], None]):
        self.number = number
        self.seed = seed  # of a sampled request: the same seed gives the same tokens again
        self.cached_tokens = 0  # of the prompt, those that came from the prefix cache; known when the first event is
        self._wake = wake
        self._cancelled = False
        self._events: list[Event] = []
        self._changed = threading.Condition()
        self._futures: list[tuple[asyncio.AbstractEventLoop, asyncio.Future]] = []

    def cancel(self) -> None:
        """Ends the request before its next cycle, with finish "cancelled", unless it is finished by then."""
        self._cancelled = True
        self._wake()

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self._cancelled

    @property
    def finished(self) -> bool:
        """Whether the last event is there."""
        with self._changed:
            return bool(self._events) and self._events[-1].finish is not None

    def so_far(self) -> list[Event]:
        """The events that are there already."""
        with self._changed:
            return list(self._events)

    def put(self, event: Event) -> None:
        """For the engine: adds an event. Never waits and never raises."""
        with self._changed:
            self._events.append(event)
            futures, self._futures = self._futures, []
            self._changed.notify_all()
        for loop, future in futures:
            try:
                loop.call_soon_threadsafe(_resolve, future)
            except RuntimeError:  # that reader's loop is closed: nobody is left to tell
                continue

    def __iter__(self) -> Iterator[Event]:
        return self.events()

    def events(self, timeout: float | None = None) -> Iterator[Event]:
        """All events from the first on. Raises TimeoutError when one takes longer than `timeout` seconds."""
        for index in itertools.count():
            event = self._event(index, timeout)
            yield event
            if event.finish is not None:
                return

    async def __aiter__(self) -> AsyncIterator[Event]:
        read = 0
        loop = asyncio.get_running_loop()
        while True:
            with self._changed:
                event = self._events[read] if len(self._events) > read else None
                future = loop.create_future()
                if event is None:
                    self._futures.append((loop, future))
            if event is None:
                await future
                continue
            read += 1
            yield event
            if event.finish is not None:
                return

    def result(self, timeout: float | None = None) -> Result:
        """Waits for the end, at most `timeout` seconds. Raises the error of a request that ended with one."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._events and self._events[-1].finish is not None, timeout):
                raise TimeoutError(f"request {self.number} is not finished after {timeout} seconds")
            events = list(self._events)
        last = events[-1]
        if last.error is not None:
            raise last.error
        assert last.finish is not None
        logprobs = [event.logprobs for event in events if event.logprobs is not None]
        return Result(
            tokens=np.concatenate([event.tokens for event in events]),
            origins=tuple(origin for event in events for origin in event.origins),
            logprobs=join_logprobs(logprobs) if logprobs else None,
            accepted=tuple(event.accepted for event in events if event.accepted is not None),
            finish=last.finish,
        )

    def _event(self, index: int, timeout: float | None) -> Event:
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._events) > index, timeout):
                raise TimeoutError(f"request {self.number}: no event for {timeout} seconds")
            return self._events[index]


def _resolve(future: asyncio.Future) -> None:
    if not future.done():
        future.set_result(None)
