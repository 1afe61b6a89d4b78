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
from serve.engine.prefixes import PrefixCache
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
    read: int  # tokens of the prompt that are in the caches
    restored: int  # of these, those that came from the prefix cache
    boundaries: frozenset[int]  # tokens of the prompt after which a snapshot is wanted
    saved: list[tuple[int, int]] = dataclasses.field(default_factory=list)  # tokens and snapshots, not in the cache yet


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
        self.prefixes = PrefixCache(self.pool, device.snapshots, config.chunk, config.page)
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

    @property
    def prefix_bytes(self) -> int:
        """Of snapshots that entries of the prefix cache have or are about to have."""
        return self._device.snapshot_bytes * self.prefixes.snapshots

    def audit(self) -> None:
        """Raises RuntimeError when owners of pages or snapshots do not add up. It is slow, and meant for tests."""
        slots = collections.Counter(page for running in self._running.values() for page in running.pages)
        self.pool.audit(slots, list(self.prefixes.kept()))
        self.prefixes.audit([snapshot for running in self._running.values() for _, snapshot in running.saved])

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
                if slot in self._reading:
                    # Nothing was reported yet: the pages that it wrote to may hold anything.
                    self.pool.spoil(running.pages[running.restored // self._config.page :])
                self._leave(slot)
                self._tell(running.handle, Event.end("cancelled"))

    def _admit(self) -> None:
        while self._free:
            waiting = self._line.take(self._fits)
            if waiting is None:
                return
            self._enter(waiting)

    def _fits(self, waiting: Waiting) -> bool:
        """Whether its worst case can be had: pages that it finds in the prefix cache, free ones and idle ones."""
        found = self.prefixes.find(waiting.request.prompt)
        idle = self.pool.idle - sum(self.pool.is_idle(page) for page in found.pages)
        return waiting.request.pages - len(found.pages) <= self.pool.free + idle

    def _enter(self, waiting: Waiting) -> None:
        prompt = waiting.request.prompt
        found = self.prefixes.find(prompt)
        self.pool.share(found.pages)
        if found.snapshot is not None:
            self.prefixes.use(found.snapshot)
        own = waiting.request.pages - len(found.pages)
        self.prefixes.make_room(own)
        self._zero_spoilt()
        allocated = self.pool.allocate(own)
        assert allocated is not None
        pages = found.pages + allocated
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
        if found.snapshot is not None:
            # If the entry had to make room just now, nothing has overwritten its snapshot yet.
            self._device.restore(slot, found.snapshot)
            self._counters.add("prefix_tokens", found.length)
        self._counters.add("prefix_misses" if found.snapshot is None else "prefix_hits")
        waiting.handle.cached_tokens = found.length
        self._running[slot] = Running(
            waiting.handle,
            waiting.request,
            pages,
            time.monotonic(),
            read=found.length,
            restored=found.length,
            boundaries=self.prefixes.boundaries(prompt, found),
        )
        self._reading.append(slot)

    def _read_chunk(self) -> tuple[bool, int | None]:
        """Whether a chunk was read, and the slot whose prompt it finished. Prompts take turns."""
        if not self._reading:
            return False, None
        slot = self._reading.popleft()
        running = self._running[slot]
        prompt = running.request.prompt
        part = prompt[running.read : running.read + self._config.chunk]
        if len(part):  # else the whole prompt came from the prefix cache, its last row included
            self._device.read(slot, part)
            running.read += len(part)
            self._counters.add("prompt_tokens", len(part))
            self._save(slot, running)
        if running.read < len(prompt):
            self._reading.append(slot)
            return True, None
        self._device.begin(slot, running.request.max_new_tokens)
        return True, slot

    def _save(self, slot: int, running: Running) -> None:
        """Takes a snapshot if one is wanted here. Nobody has looked at the numbers yet: no entry is made of it."""
        prompt, length = running.request.prompt, running.read
        if length not in running.boundaries or self.prefixes.has(prompt, length):
            return
        snapshot = self.prefixes.reserve()
        if snapshot is not None:
            self._device.save(slot, snapshot)
            running.saved.append((length, snapshot))

    def _cycle(self, slots: list[int], *, after_chunk: bool, began: int | None) -> None:
        start = time.perf_counter()
        lanes = self._device.cycle(slots, [*reversed(self._free), *self._reading])
        self._counters.cycle(time.perf_counter() - start, after_chunk=after_chunk)
        for slot, lane in lanes.items():
            running = self._running[slot]
            if lane.failed:
                self._distrust(running)
            elif slot == began:
                self._publish(running)
            if lane.done:
                self._leave(slot)
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

    def _publish(self, running: Running) -> None:
        """The first report says that all numbers of the prompt are finite: others may go on from its prefixes."""
        for length, snapshot in running.saved:
            self.prefixes.add(running.request.prompt, length, running.pages, snapshot)
        running.saved.clear()

    def _distrust(self, running: Running) -> None:
        """Some number is not finite: neither its pages nor any prefix that it shares is used again."""
        self.pool.spoil(running.pages)
        self.prefixes.forget(running.request.prompt)

    def _zero_spoilt(self) -> None:
        if pages := self.pool.take_spoilt():
            self._device.clear_pages(pages)

    def _leave(self, slot: int) -> None:
        """The slot and its pages are free again."""
        running = self._running.pop(slot)
        for _, snapshot in running.saved:
            self.prefixes.give_back(snapshot)
        if slot in self._reading:
            self._reading.remove(slot)
        self._device.vacate(slot)
        self.pool.release(running.pages)
        self._zero_spoilt()
        self._free.append(slot)
        self._free.sort(reverse=True)  # the lowest comes first
        self._counters.left(time.monotonic() - running.since)

    def _tell(self, handle: Handle, event: Event) -> None:
        self._counters.event(event)
        handle.put(event)
