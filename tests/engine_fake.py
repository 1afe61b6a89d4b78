"""A device that counts instead of computing, for tests of threads and queues."""

import threading

import numpy as np

from dspine_jax.sampling.logprobs import Logprobs
from serve.engine.report import Lane


class FakeDevice:
    """Each cycle emits the next number of each slot. `permits` says how many cycles may run; they wait for it."""

    permits = threading.Semaphore(0)
    broken = False
    snapshots = 0
    snapshot_bytes = 0
    unprepared: tuple[int, ...] = ()  # prompts that begin with one of these cannot be prepared

    def __init__(self, pair, config):
        self.left: dict[int, int] = {}
        self.sent: dict[int, int] = {}
        self.slots = config.slots

    def warm_up(self, progress):
        progress("warm")

    def newcomer(self, request, pages):
        if request.prompt[0] in self.unprepared:
            raise MemoryError("no room")
        return request

    def admit(self, slot, newcomer):
        assert slot not in self.left
        self.left[slot], self.sent[slot] = 0, 0

    def read(self, slot, prompt):
        assert slot in self.left

    def begin(self, slot, limit):
        self.left[slot] = limit

    def cycle(self, slots, fillers):
        assert not set(slots) & set(fillers)
        self.permits.acquire()
        if self.broken:
            raise RuntimeError("the device is gone")
        return {slot: self._lane(slot) for slot in slots}

    def wait(self):
        pass

    def vacate(self, slot):
        del self.left[slot], self.sent[slot]

    def clear_pages(self, pages):
        pass

    def _lane(self, slot):
        self.left[slot] -= 1
        self.sent[slot] += 1
        tokens = np.array([self.sent[slot]], np.int32)
        none = Logprobs(np.zeros(1, np.float32), np.zeros((1, 0), np.int32), np.zeros((1, 0), np.float32))
        done = self.left[slot] == 0
        return Lane(tokens, none, accepted=0, ran=True, stopped=False, failed=False, done=done)
