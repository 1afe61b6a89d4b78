"""What an engine has done and is doing."""

import collections
import dataclasses
import threading

import numpy as np

from serve.engine.events import Event, FinishReason, Origin

SMOOTHING = 0.1  # weight of the latest request in the average
UNKNOWN_SECONDS = 1.0  # how long a request is thought to take before the first has finished


@dataclasses.dataclass(frozen=True)
class EngineStats:
    """A snapshot. Counters start at the engine's start and never fall."""

    submitted: int  # requests taken, waiting ones included
    refused: int  # because the queue was full
    expired: int  # waited too long; counted in `finished` as "error" too
    finished: dict[FinishReason, int]
    waiting: int
    running: int  # have a slot
    slots: int
    prompt_tokens: int  # read; those that came from the prefix cache are not
    tokens: dict[Origin, int]  # emitted
    cycles: int  # one each for all slots together
    cycle_seconds: float  # of cycles that followed each other directly
    chunk_cycles: int  # of the cycles, those that came after a chunk of a prompt
    chunk_cycle_seconds: float  # of these, the chunk included
    accepted: np.ndarray  # [block] slots' cycles, by the number of proposals that the target agreed with
    pages_in_use: int  # by requests that run
    pages_idle: int  # of the others, those that only the prefix cache keeps
    pages: int
    prefix_hits: int  # requests that went on from a prefix of an earlier prompt
    prefix_misses: int  # that found none
    prefix_tokens: int  # of prompts, not read because the cache had them
    prefix_entries: int  # prefixes that can be taken up
    prefix_bytes: int  # of their snapshots, and of those that requests are about to leave
    prefix_evictions: int  # entries that had to go for want of bytes or pages
    warm_up_compilations: int
    compilations: int  # after the warm-up

    @property
    def accepted_at(self) -> np.ndarray:
        """[block - 1] slots' cycles in which the proposal at each position was accepted."""
        return self.accepted[::-1].cumsum()[::-1][1:]

    @property
    def acceptance_length(self) -> float:
        """Tokens per slot and cycle, if none is cut by a stop or a limit; NaN before the first cycle."""
        cycles = self.accepted.sum()
        return 1 + float(self.accepted @ np.arange(len(self.accepted))) / cycles if cycles else float("nan")


class Counters:
    """Written by the engine and by callers, read by anybody."""

    def __init__(self, block: int):
        self._lock = threading.Lock()
        self._numbers: collections.Counter[str] = collections.Counter()
        self._finished: collections.Counter[FinishReason] = collections.Counter()
        self._tokens: collections.Counter[Origin] = collections.Counter()
        self._cycle_seconds = 0.0
        self._chunk_cycle_seconds = 0.0
        self._accepted = np.zeros(block, np.int64)
        self._request_seconds: float | None = None

    def add(self, name: str, count: int = 1) -> None:
        """Of `submitted`, `refused`, `expired`, `prompt_tokens`, `prefix_hits`, `prefix_misses`, `prefix_tokens`."""
        with self._lock:
            self._numbers[name] += count

    def event(self, event: Event) -> None:
        """Something that a request was told."""
        with self._lock:
            self._tokens.update(event.origins)
            if event.accepted is not None:
                self._accepted[event.accepted] += 1
            if event.finish is not None:
                self._finished[event.finish] += 1

    def cycle(self, seconds: float, *, after_chunk: bool) -> None:
        """One cycle of the batch."""
        with self._lock:
            self._numbers["cycles"] += 1
            self._numbers["chunk_cycles"] += after_chunk
            if after_chunk:
                self._chunk_cycle_seconds += seconds
            else:
                self._cycle_seconds += seconds

    def left(self, seconds: float) -> None:
        """A request held its slot this long."""
        with self._lock:
            last = self._request_seconds
            self._request_seconds = seconds if last is None else last + SMOOTHING * (seconds - last)

    @property
    def request_seconds(self) -> float:
        """How long a request holds its slot, lately."""
        return UNKNOWN_SECONDS if self._request_seconds is None else self._request_seconds

    def snapshot(
        self,
        *,
        waiting: int,
        running: int,
        slots: int,
        pages_in_use: int,
        pages_idle: int,
        pages: int,
        prefix_entries: int,
        prefix_bytes: int,
        prefix_evictions: int,
        warm_up_compilations: int,
        compilations: int,
    ) -> EngineStats:
        """The counters beside what is the case now."""
        with self._lock:
            return EngineStats(
                submitted=self._numbers["submitted"],
                refused=self._numbers["refused"],
                expired=self._numbers["expired"],
                prompt_tokens=self._numbers["prompt_tokens"],
                cycles=self._numbers["cycles"],
                chunk_cycles=self._numbers["chunk_cycles"],
                cycle_seconds=self._cycle_seconds,
                chunk_cycle_seconds=self._chunk_cycle_seconds,
                finished=dict(self._finished),
                tokens=dict(self._tokens),
                accepted=self._accepted.copy(),
                waiting=waiting,
                running=running,
                slots=slots,
                pages_in_use=pages_in_use,
                pages_idle=pages_idle,
                pages=pages,
                prefix_hits=self._numbers["prefix_hits"],
                prefix_misses=self._numbers["prefix_misses"],
                prefix_tokens=self._numbers["prefix_tokens"],
                prefix_entries=prefix_entries,
                prefix_bytes=prefix_bytes,
                prefix_evictions=prefix_evictions,
                warm_up_compilations=warm_up_compilations,
                compilations=compilations,
            )
