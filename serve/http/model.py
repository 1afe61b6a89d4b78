"""The model that a server serves: perhaps still loading, then its parts."""

import dataclasses
import time
from typing import Protocol

from dspine_jax.pair import Pair
from serve.chat import ChatTemplate
from serve.engine import EngineConfig, EngineStats, EngineStopped, Handle, Request
from serve.text import TextModel

RETRY_LOADING = 5.0  # seconds


class ServingEngine(Protocol):
    """What the server uses of `serve.engine.Engine`."""

    @property
    def pair(self) -> Pair: ...
    @property
    def config(self) -> EngineConfig: ...
    @property
    def state(self) -> str: ...
    def submit(self, request: Request) -> Handle: ...
    def drain(self, timeout: float | None = None) -> bool: ...
    def stop(self) -> None: ...
    def stats(self) -> EngineStats: ...


@dataclasses.dataclass(frozen=True, eq=False)
class Parts:
    """What answering needs."""

    engine: ServingEngine
    text: TextModel
    template: ChatTemplate | None  # None: the model has none, and only continues texts

    @property
    def context(self) -> int:
        """Most positions of a request."""
        return self.engine.config.context

    @property
    def vocab_size(self) -> int:
        """Ids below this are tokens."""
        return self.engine.pair.target_config.vocab_size

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """What ends a text: as the model's configuration and as its tokenizer's say."""
        return tuple(dict.fromkeys(self.engine.pair.target_config.eos_token_ids + self.text.eos_token_ids))

    @property
    def proposals(self) -> int:
        """Proposals that each cycle verifies."""
        widths = self.engine.config.verification.widths
        return (widths[0] if widths else self.engine.pair.drafter_config.block_size) - 1


class ServedModel:
    """Known by `name` from the start; `open` gives it its parts."""

    def __init__(self, name: str, parts: Parts | None = None):
        self.name = name
        self.created = int(time.time())
        self.progress = "starting"  # what is being done before it is ready
        self.leaving = False  # the server shuts down
        self._parts = parts

    def open(self, parts: Parts) -> None:
        """From now on requests are served."""
        self._parts = parts

    @property
    def parts(self) -> Parts:
        """Raises EngineStopped while there are none yet."""
        if self._parts is None:
            raise EngineStopped(f"the model is not loaded yet: {self.progress}", RETRY_LOADING)
        return self._parts

    @property
    def opened(self) -> bool:
        """Whether there are parts."""
        return self._parts is not None

    @property
    def state(self) -> str:
        """The engine's state, or "loading"."""
        return "loading" if self._parts is None else self._parts.engine.state

    @property
    def ready(self) -> bool:
        """Whether a request would be taken."""
        return self.state == "ready" and not self.leaving

    def drain(self) -> None:
        """No more requests; those that run go on."""
        self.leaving = True
        if self._parts is not None:
            self._parts.engine.drain(0)

    def stop(self) -> None:
        """Ends those that run as well, and waits for it."""
        self.leaving = True
        if self._parts is not None:
            self._parts.engine.stop()
