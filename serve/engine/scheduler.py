"""What runs next: at each step the cancelled leave, the first in line enter, one chunk is read, one cycle runs."""

import collections
import dataclasses
import time

from serve.engine.config import EngineConfig
from serve.engine.device import Device
from serve.engine.errors import QueueTimeout, RequestFailed
from serve.engine.events import Event, origins_of
from serve.engine.handle import Handle
from serve.engine.pages import PagePool
from serve.engine.report import Lane
from serve.engine.request import Checked
from serve.engine.stats import Counters
from serve.engine.waiting import Waiting, WaitingLine


@dataclasses.dataclass(eq=False)
class Running:
    """A request that has a slot."""

    handle: Handle
    request: Checked
    pages: tuple[int, ...]
    since: float
    read: int = 0  # tokens of the prompt that are in the caches


class Scheduler:
    """Owns slots and pages. Only the engine's thread may call it."""

    def __init__(self, device: Device, config: EngineConfig, block: int, line: WaitingLine, counters: Counters):
        self._device = device
        self._config = config
        self._line = line
        self._counters = counters
        # Rows of a cycle: what the bonus token is told by.
        self._width = config.verification.widths[0] if config.verification.widths else block
        self.pool = PagePool(config.pool(block))
        self._free = list(range(config.slots - 1, -1, -1))
        self._reading: collections.deque[int] = collections.deque()  # slots whose prompt is not read, next one first
        self._running: dict[int, Running] = {}

    @property
    def running(self) -> int:
        """Slots that have a request."""
        return len(self._running)

    @property
    def free_slots(self) -> int:
        """Slots that have none."""
        return self._config.slots - len(self._running)

    def step(self) -> None:
        """One chunk of one prompt at most, then one cycle of all whose prompt is read."""
        self._remove_cancelled()
        self._admit()
        chunk, began = self._read_chunk()
        cycling = [slot for slot in self._running if slot not in self._reading]
        if cycling:
            self._cycle(cycling, after_chunk=chunk, began=began)
        elif chunk:
            # Or the host would run ahead of the device, and a cancellation would come late.
            self._device.wait()

    def cancel_all(self) -> None:
        """Everybody, waiting or running, is removed at the next step."""
        for running in self._running.values():
            running.handle.cancel()
        for waiting in self._line.leave_all():
            self._tell(waiting.handle, Event.end("cancelled"))

    def end_all(self, event: Event) -> None:
        """Tells everybody, waiting or running, that it is over, and touches the device no more."""
        for waiting in self._line.leave_all():
            self._tell(waiting.handle, event)
        for running in self._running.values():
            self._tell(running.handle, event)
        self._running.clear()

    def _remove_cancelled(self) -> None:
        for waiting in self._line.leave():
            if waiting.handle.cancelled:
                self._tell(waiting.handle, Event.end("cancelled"))
                continue
            self._counters.add("expired")
            error = QueueTimeout(
                f"no slot was free for {self._config.queue_timeout:g} seconds", self._counters.request_seconds
            )
            self._tell(waiting.handle, Event.end("error", error))
        for slot, running in list(self._running.items()):
            if running.handle.cancelled:
                # Of a prompt that is being read nothing was reported yet: its pages may hold anything.
                self._leave(slot, dirty=slot in self._reading)
                self._tell(running.handle, Event.end("cancelled"))

    def _admit(self) -> None:
        while self._free:
            waiting = self._line.take(lambda first: first.request.pages <= self.pool.total - self.pool.in_use)
            if waiting is None:
                return
            self._enter(waiting)

    def _enter(self, waiting: Waiting) -> None:
        pages = self.pool.allocate(waiting.request.pages)
        assert pages is not None
        try:
            newcomer = self._device.newcomer(waiting.request, pages)
        except Exception as error:  # whatever is wrong with this request must not end the others
            self.pool.release(pages)
            failed = RequestFailed(f"the request could not be prepared: {error}")
            failed.__cause__ = error
            self._tell(waiting.handle, Event.end("error", failed))
            return
        slot = self._free.pop()
        self._device.admit(slot, newcomer)
        self._running[slot] = Running(waiting.handle, waiting.request, pages, time.monotonic())
        self._reading.append(slot)

    def _read_chunk(self) -> tuple[bool, int | None]:
        """Whether a chunk was read, and the slot whose prompt it finished. Prompts take turns."""
        if not self._reading:
            return False, None
        slot = self._reading.popleft()
        running = self._running[slot]
        prompt = running.request.prompt
        part = prompt[running.read : running.read + self._config.chunk]
        self._device.read(slot, part)
        running.read += len(part)
        self._counters.add("prompt_tokens", len(part))
        if running.read < len(prompt):
            self._reading.append(slot)
            return True, None
        self._device.begin(slot, running.request.max_new_tokens)
        return True, slot

    def _cycle(self, slots: list[int], *, after_chunk: bool, began: int | None) -> None:
        start = time.perf_counter()
        lanes = self._device.cycle(slots, [*reversed(self._free), *self._reading])
        self._counters.cycle(time.perf_counter() - start, after_chunk=after_chunk)
        for slot, lane in lanes.items():
            running = self._running[slot]
            if lane.done:
                self._leave(slot, dirty=lane.failed)
            event = self._event(running, lane, prompt=int(slot == began and len(lane.tokens) > 0))
            if len(event.tokens) or event.finish is not None or event.accepted is not None:
                self._tell(running.handle, event)

    def _event(self, running: Running, lane: Lane, prompt: int) -> Event:
        count, best = len(lane.tokens), running.request.sampling.logprobs
        error = None
        if lane.failed:
            error = RequestFailed("the model's scores for this request stopped being finite numbers")
        finish = None
        if lane.done:
            finish = "error" if lane.failed else "stop" if lane.stopped else "length"
        return Event(
            tokens=lane.tokens,
            origins=origins_of(prompt, count - prompt, lane.accepted, self._width),
            logprobs=None if best is None else lane.logprobs.best(best),
            accepted=lane.accepted if lane.ran and not lane.failed else None,
            finish=finish,
            error=error,
        )

    def _leave(self, slot: int, *, dirty: bool) -> None:
        """The slot and its pages are free again; `dirty` pages may hold numbers that are not finite."""
        running = self._running.pop(slot)
        if slot in self._reading:
            self._reading.remove(slot)
        self._device.vacate(slot)
        freed = self.pool.release(running.pages)
        if dirty:
            self._device.clear_pages(freed)
        self._free.append(slot)
        self._free.sort(reverse=True)  # the lowest comes first
        self._counters.left(time.monotonic() - running.since)

    def _tell(self, handle: Handle, event: Event) -> None:
        self._counters.event(event)
        handle.put(event)
