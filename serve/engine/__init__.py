"""Continuous batching over fixed slots: requests of token ids in, events of emitted tokens out.

`Engine` is the whole interface. Below it: `scheduler` decides what runs, `device` runs it with `programs`, `report` is
what one cycle tells the host, `pages` and `waiting` are what requests wait for, `handle` is what a caller holds.
"""

from serve.engine.config import EngineConfig
from serve.engine.engine import Engine
from serve.engine.errors import EngineStopped, QueueFull, QueueTimeout, RequestFailed, Unavailable
from serve.engine.events import Event, FinishReason, Origin
from serve.engine.handle import Handle, Result
from serve.engine.request import Request
from serve.engine.stats import EngineStats

__all__ = [
    "Engine",
    "EngineConfig",
    "EngineStats",
    "EngineStopped",
    "Event",
    "FinishReason",
    "Handle",
    "Origin",
    "QueueFull",
    "QueueTimeout",
    "Request",
    "RequestFailed",
    "Result",
    "Unavailable",
]
