"""An engine that says what it is told to, one event at a time if need be."""

import dataclasses
import itertools
import threading
from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from dspine_jax.sampling.logprobs import Logprobs
from serve.engine import EngineConfig, EngineStopped, Event, Handle, Origin, QueueFull, Request
from serve.engine.stats import Counters

BLOCK = 4
Script = Callable[[Request], Iterable[Event]]


def event_of(tokens: Sequence[int], request: Request, *, finish: Any = None, error: Exception | None = None) -> Event:
    """One cycle: all but the last token were drafted. Logprobs are made of the ids, so that tests can tell them."""
    ids = np.array(tokens, np.int32)
    best = request.sampling.logprobs
    found = None
    if best is not None:
        top = np.repeat(ids[:, None], best, axis=1)
        found = Logprobs((-ids / 100).astype(np.float32), top, (-top / 100).astype(np.float32))
    origins = (Origin.DRAFT,) * (len(ids) - 1) + (Origin.CORRECTION,) * min(1, len(ids))
    return Event(ids, origins, found, accepted=min(max(0, len(ids) - 1), BLOCK - 1), finish=finish, error=error)


def saying(tokens: Sequence[int], *, pieces: int = BLOCK, finish: str = "stop") -> Script:
    """A script of these tokens, so many in each event."""

    def script(request: Request) -> Iterable[Event]:
        parts = [list(part) for part in itertools.batched(tokens, pieces)] or [[]]
        for index, part in enumerate(parts):
            yield event_of(part, request, finish=finish if index == len(parts) - 1 else None)

    return script


@dataclasses.dataclass(eq=False)
class ScriptedEngine:
    """Serves every request by `script`, in a thread of its own. `step` says when an event may go out."""

    vocab_size: int
    eos_token_ids: tuple[int, ...]
    script: Script = lambda request: [Event.end("stop")]
    context: int = 256
    room: int = 8  # requests at a time; there is no queue
    step: Callable[[], Any] = lambda: None

    def __post_init__(self) -> None:
        self.config = EngineConfig(context=self.context, slots=self.room, queue_limit=0)
        self.pair: Any = SimpleNamespace(
            target_config=SimpleNamespace(vocab_size=self.vocab_size, eos_token_ids=self.eos_token_ids),
            drafter_config=SimpleNamespace(block_size=BLOCK),
        )
        self.state = "ready"
        self.requests: list[Request] = []
        self.handles: list[Handle] = []
        self.failure: Exception | None = None  # what `submit` raises
        self._counters = Counters(BLOCK)
        self._running = 0
        self._changed = threading.Condition()

    def submit(self, request: Request) -> Handle:
        if self.failure is not None:
            raise self.failure
        if self.state != "ready":
            raise EngineStopped("the engine is shutting down", 2.5)
        with self._changed:
            if self._running == self.room:
                raise QueueFull("too many", 3.2)
            self._running += 1
        handle = Handle(len(self.handles), request.sampling.seed, self._wake)
        self.requests.append(request)
        self.handles.append(handle)
        self._counters.add("submitted")
        threading.Thread(target=self._play, args=(handle, request), daemon=True).start()
        return handle

    @property
    def running(self) -> int:
        return self._running

    def wait_idle(self, timeout: float = 10) -> None:
        """Until nothing runs."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._running == 0, timeout), f"{self._running} still run"

    def drain(self, timeout: float | None = None) -> bool:
        self.state = "draining"
        return self._running == 0

    def stop(self) -> None:
        self.state = "stopped"
        for handle in self.handles:
            if not handle.finished:
                handle.cancel()

    def stats(self):
        return self._counters.snapshot(
            waiting=0,
            running=self._running,
            slots=self.room,
            pages_in_use=3 * self._running,
            pages=3 * self.room,
            warm_up_compilations=7,
            compilations=0,
        )

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _play(self, handle: Handle, request: Request) -> None:
        for event in self._events(request):
            if handle.cancelled:
                event = Event.end("cancelled")
            self._counters.event(event)
            if event.finish is not None:
                with self._changed:
                    self._running -= 1
                    self._changed.notify_all()
            handle.put(event)
            if event.finish is not None:
                return

    def _events(self, request: Request) -> Iterable[Event]:
        """The script's; a fault of the test's own is an answer too, or it would wait for ever."""
        try:
            for event in self.script(request):
                self.step()
                yield event
            yield Event.end("error", AssertionError("a script must end with a finish reason"))
        except Exception as error:
            yield Event.end("error", error)
