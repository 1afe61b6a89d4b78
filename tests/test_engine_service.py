"""Threads, queue and shutdown of an engine, on a device that only counts."""

import asyncio
import threading
import time
from types import SimpleNamespace

import pytest

from serve.engine import Engine, EngineConfig, EngineStopped, QueueFull, QueueTimeout, Request, RequestFailed
from tests.copying import copying_pair
from tests.engine_fake import FakeDevice

PATIENCE = 20  # seconds; nothing here takes one


@pytest.fixture
def device(monkeypatch):
    """The class, with no cycle allowed yet."""
    monkeypatch.setattr(FakeDevice, "permits", threading.Semaphore(0))
    monkeypatch.setattr("serve.engine.engine.Device", FakeDevice)
    return FakeDevice


@pytest.fixture
def engine_of(device):
    """A function that starts an engine; it is stopped after the test."""
    engines = []

    def start(**sizes) -> Engine:
        engine = Engine(copying_pair(), EngineConfig(**{"context": 64, "slots": 2, **sizes}))
        engines.append(engine.start())
        return engine

    yield start
    device.permits.release(10_000)
    for engine in engines:
        engine.stop()


def tokens(handle) -> list[int]:
    return handle.result(PATIENCE).tokens.tolist()


def wait_until(condition) -> None:
    """A short wait for another thread."""
    pause = threading.Event()
    for _ in range(PATIENCE * 100):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError("it never came true")


def test_events_reach_threads_and_coroutines(engine_of, device):
    engine = engine_of()
    handles = [engine.submit(Request([2], count)) for count in (1, 3, 5)]

    async def collect(handle):
        return [int(event.tokens[0]) async for event in handle]

    async def together():
        running = asyncio.gather(*(collect(handle) for handle in handles), collect(handles[2]))
        await asyncio.sleep(0.05)
        device.permits.release(100)
        return await asyncio.wait_for(running, PATIENCE)

    assert asyncio.run(together()) == [[1], [1, 2, 3], [1, 2, 3, 4, 5], [1, 2, 3, 4, 5]]
    assert [event.finish for event in handles[1]] == [None, None, "length"]
    assert tokens(handles[2]) == [1, 2, 3, 4, 5]


def test_a_reader_that_is_gone_harms_nobody(engine_of, device):
    engine = engine_of()
    handle = engine.submit(Request([2], 3))

    async def give_up():
        async for _ in handle:
            raise AssertionError("no cycle was allowed")

    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(give_up(), 0.05))
    device.permits.release(100)
    assert tokens(handle) == [1, 2, 3]


def test_a_full_queue_refuses_and_says_when_to_come_back(engine_of, device):
    engine = engine_of(queue_limit=2)
    running = [engine.submit(Request([2], 2)) for _ in range(2)]
    wait_until(lambda: engine.stats().running == 2)
    waiting = [engine.submit(Request([2], 2)) for _ in range(2)]
    with pytest.raises(QueueFull, match="2 requests wait already") as refusal:
        engine.submit(Request([2], 2))
    assert refusal.value.retry_after >= 1
    assert (engine.stats().refused, engine.stats().waiting, engine.stats().submitted) == (1, 2, 4)
    device.permits.release(100)
    assert [tokens(handle) for handle in running + waiting] == [[1, 2]] * 4
    assert tokens(engine.submit(Request([2], 1))) == [1]


def test_without_a_queue_free_slots_still_serve(engine_of, device):
    engine = engine_of(queue_limit=0)
    device.permits.release(100)
    assert tokens(engine.submit(Request([2], 2))) == [1, 2]


def test_who_waits_too_long_is_told_so(engine_of, device, monkeypatch):
    engine = engine_of(slots=1, queue_timeout=60)
    running = engine.submit(Request([2], 50))
    wait_until(lambda: engine.stats().running == 1)
    late = engine.submit(Request([2], 1))
    monkeypatch.setattr("serve.engine.waiting.time", SimpleNamespace(monotonic=lambda: time.monotonic() + 61))
    device.permits.release(1)
    with pytest.raises(QueueTimeout, match="no slot was free for 60 seconds") as refusal:
        late.result(PATIENCE)
    assert refusal.value.retry_after > 0
    assert engine.stats().expired == 1
    device.permits.release(100)
    assert len(tokens(running)) == 50


def test_cancelling_works_while_waiting_and_while_running(engine_of, device):
    engine = engine_of(slots=1)
    running, waiting = engine.submit(Request([2], 50)), engine.submit(Request([2], 50))
    third = engine.submit(Request([2], 2))
    wait_until(lambda: engine.stats().running == 1)
    device.permits.release(3)
    wait_until(lambda: len(running.so_far()) == 3)
    engine.cancel(waiting)
    engine.cancel(running)
    device.permits.release(100)  # the cycle that had begun still counts
    assert running.result(PATIENCE).finish == waiting.result(PATIENCE).finish == "cancelled"
    assert 3 <= len(tokens(running)) <= 4 and tokens(waiting) == []
    assert tokens(third) == [1, 2]
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.pages_in_use) == (0, 0, 0)
    assert stats.finished == {"cancelled": 2, "length": 1}


def test_a_request_that_cannot_be_prepared_fails_alone(engine_of, device, monkeypatch):
    monkeypatch.setattr(device, "unprepared", (7,))
    engine = engine_of()
    good, bad = engine.submit(Request([2], 2)), engine.submit(Request([7], 2))
    device.permits.release(100)
    with pytest.raises(RequestFailed, match="could not be prepared: no room"):
        bad.result(PATIENCE)
    assert tokens(good) == tokens(engine.submit(Request([2], 2))) == [1, 2]
    assert engine.stats().pages_in_use == 0


def test_pages_are_waited_for_in_order(engine_of, device):
    """A big request at the head is not overtaken by small ones that would fit."""
    engine = engine_of(context=250, slots=3, pages=5)
    first = engine.submit(Request([2] * 150, 2))  # 3 pages
    wait_until(lambda: engine.stats().running == 1)
    big, small = engine.submit(Request([2] * 200, 2)), engine.submit(Request([2], 1))
    device.permits.release(1)
    wait_until(lambda: len(first.so_far()) == 1)
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.pages_in_use) == (1, 2, 3)
    device.permits.release(100)
    assert [tokens(handle) for handle in (first, big, small)] == [[1, 2], [1, 2], [1]]
    assert engine.stats().pages_in_use == 0


def test_draining_finishes_what_was_promised_and_takes_nothing_more(engine_of, device):
    engine = engine_of(slots=1)
    handles = [engine.submit(Request([2], 3)) for _ in range(3)]
    assert not engine.drain(0.05)
    assert engine.state == "draining"
    with pytest.raises(EngineStopped, match="shutting down"):
        engine.submit(Request([2], 1))
    device.permits.release(100)
    assert engine.drain(PATIENCE)
    assert [tokens(handle) for handle in handles] == [[1, 2, 3]] * 3
    assert engine.state == "stopped"


def test_stopping_cancels_what_runs_and_what_waits(engine_of, device):
    engine = engine_of(slots=1)
    handles = [engine.submit(Request([2], 50)) for _ in range(3)]
    wait_until(lambda: engine.stats().running == 1)
    device.permits.release(100)
    engine.stop()
    finishes = [handle.result(PATIENCE).finish for handle in handles]
    assert finishes[2] == "cancelled" and set(finishes) <= {"cancelled", "length"}
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.pages_in_use) == (0, 0, 0)
    with pytest.raises(EngineStopped, match="stopped"):
        engine.submit(Request([2], 1))


def test_a_broken_device_ends_every_request_with_an_error(engine_of, device, monkeypatch, caplog):
    engine = engine_of(slots=1)
    handles = [engine.submit(Request([2], 50)) for _ in range(3)]
    monkeypatch.setattr(device, "broken", True)
    device.permits.release(1)
    for handle in handles:
        with pytest.raises(RequestFailed, match="broke down") as failure:
            handle.result(PATIENCE)
        assert "the device is gone" in str(failure.value.__cause__)
    with pytest.raises(EngineStopped, match="broken"):
        engine.submit(Request([2], 1))
    assert engine.state == "broken"
    assert "the engine is broken" in caplog.text


def test_an_engine_that_cannot_start_says_why(device, monkeypatch, caplog):
    def fail(*_):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(device, "warm_up", fail)
    engine = Engine(copying_pair(), EngineConfig(context=64))
    with pytest.raises(EngineStopped, match="not started"):
        engine.submit(Request([2], 1))
    with pytest.raises(RuntimeError, match="out of memory"):
        engine.start()
    with pytest.raises(RuntimeError, match="make a new one"):
        engine.start()
