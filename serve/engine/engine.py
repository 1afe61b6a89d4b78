"""The engine: one thread that owns the device, and what callers may do with it from any other."""

import atexit
import itertools
import logging
import threading
import time
from collections.abc import Callable
from typing import Literal, Self

from dspine_jax.pair import Pair
from serve.engine.compilations import Compilations
from serve.engine.config import EngineConfig
from serve.engine.device import Device, snapshot_room
from serve.engine.errors import EngineStopped, QueueFull, RequestFailed
from serve.engine.events import Event
from serve.engine.handle import Handle
from serve.engine.request import Request, check
from serve.engine.scheduler import Scheduler
from serve.engine.stats import Counters, EngineStats
from serve.engine.waiting import Waiting, WaitingLine

LOG = logging.getLogger("dspine.engine")
State = Literal["new", "starting", "ready", "draining", "stopped", "broken"]


class Engine:
    """`start`, any number of `submit`, then `drain` or `stop`. As a context manager it starts and stops."""

    def __init__(self, pair: Pair, config: EngineConfig):
        """Raises ValueError for sizes that the pair cannot have."""
        config.check(pair)
        snapshot_room(pair, config)
        self.pair = pair
        self.config = config
        self._block = pair.drafter_config.block_size
        self._line = WaitingLine()
        self._counters = Counters(self._block)
        self._compilations = Compilations()
        self._warm_up_compilations = 0
        self._numbers = itertools.count()
        self._scheduler: Scheduler | None = None
        self._state: State = "new"
        self._failure: BaseException | None = None
        self._stop = False
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dspine-engine", daemon=True)

    @property
    def state(self) -> State:
        """Where the engine is in its life; broken means an error that no request can be blamed for."""
        return self._state

    def start(self, progress: Callable[[str], None] = LOG.info) -> Self:
        """Compiles and runs every program once; returns when requests can be served at full speed.

        `progress` is called with what is being done. Raises what went wrong there.
        """
        if self._state != "new":
            raise RuntimeError(f"this engine is {self._state}: make a new one")
        self._state = "starting"
        self._progress = progress
        # A thread that is still at work when the interpreter ends would take the process down with a fault.
        atexit.register(self.stop)
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            raise self._failure
        return self

    def submit(self, request: Request) -> Handle:
        """Puts a request in line, from any thread.

        Raises ValueError for a request that can never be served, `QueueFull` and `EngineStopped` for one that cannot
        be served now.
        """
        checked = check(request, self.pair, self.config)
        handle = Handle(next(self._numbers), checked.seed, self._line.wake)
        scheduler = self._scheduler
        if self._state != "ready" or scheduler is None:
            raise self._refusal()
        waiting = Waiting(handle, checked, time.monotonic() + self.config.queue_timeout)
        # Whoever finds a slot at the next step is not in the queue's way.
        if not self._line.add(waiting, self.config.queue_limit + scheduler.free_slots):
            if self._line.closed:
                raise self._refusal()
            self._counters.add("refused")
            ahead = len(self._line) / self.config.slots
            raise QueueFull(
                f"{self.config.queue_limit} requests wait already, and that is the limit",
                max(1.0, ahead * self._counters.request_seconds),
            )
        self._counters.add("submitted")
        return handle

    def cancel(self, handle: Handle) -> None:
        """Ends a request before its next cycle, wherever it is."""
        handle.cancel()

    def drain(self, timeout: float | None = None) -> bool:
        """Takes no more requests and finishes those it has; False when they last longer than `timeout` seconds."""
        if self._state == "new":
            raise RuntimeError("this engine was not started")
        self._line.close()
        if self._state in ("starting", "ready"):
            self._state = "draining"
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def stop(self) -> None:
        """Takes no more requests and ends those it has with finish "cancelled"."""
        self._stop = True
        if self._state != "new":
            self.drain()
        atexit.unregister(self.stop)

    def stats(self) -> EngineStats:
        """A snapshot, from any thread."""
        scheduler = self._scheduler
        total = self.config.pool(self._block) - 1
        return self._counters.snapshot(
            waiting=len(self._line),
            running=scheduler.running if scheduler else 0,
            slots=self.config.slots,
            pages_in_use=scheduler.pool.in_use if scheduler else 0,
            pages_idle=scheduler.pool.idle if scheduler else 0,
            pages=total,
            prefix_entries=scheduler.prefixes.entries if scheduler else 0,
            prefix_bytes=scheduler.prefix_bytes if scheduler else 0,
            prefix_evictions=scheduler.prefixes.evictions if scheduler else 0,
            warm_up_compilations=self._warm_up_compilations,
            compilations=self._compilations.count - self._warm_up_compilations,
        )

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_) -> None:
        self.stop()

    def _run(self) -> None:
        with self._compilations.watch():
            try:
                scheduler = self._warm()
                self._ready.set()
                self._serve(scheduler)
                self._state = "stopped"
            except BaseException as error:
                self._failure = error
                self._state = "broken"
                LOG.exception("the engine is broken")
                self._line.close()
                failed = RequestFailed("the engine broke down")
                failed.__cause__ = error
                if self._scheduler is not None:
                    self._scheduler.end_all(Event.end("error", failed))
                self._ready.set()

    def _warm(self) -> Scheduler:
        self._progress("making the caches")
        device = Device(self.pair, self.config)
        device.warm_up(self._progress)
        self._warm_up_compilations = self._compilations.count
        self._progress(f"ready: {self._warm_up_compilations} programs")
        self._scheduler = Scheduler(device, self.config, self._block, self._line, self._counters)
        self._state = "draining" if self._line.closed else "ready"
        return self._scheduler

    def _serve(self, scheduler: Scheduler) -> None:
        while True:
            if not scheduler.running:
                self._line.wait(lambda: self._line.closed or self._stop)
            if self._stop:
                scheduler.cancel_all()
            if not scheduler.running and not len(self._line):
                if self._line.closed:
                    scheduler.prefixes.clear()
                    return
                continue
            scheduler.step()

    def _refusal(self) -> EngineStopped:
        what = {
            "new": "not started",
            "starting": "warming up",
            "draining": "shutting down",
            "stopped": "stopped",
            "broken": "broken",
        }
        return EngineStopped(f"the engine is {what.get(self._state, self._state)}", self._counters.request_seconds)
