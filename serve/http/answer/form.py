"""What both endpoints' answers have in common."""

import dataclasses
import secrets
import time
from collections.abc import Sequence
from typing import Any, Protocol

from serve.http.answer.choice import Choice
from serve.http.answer.deltas import Delta
from serve.http.answer.facts import TokenFacts
from serve.http.answer.logprobs import token_origins
from serve.text import TextModel


class Form(Protocol):
    """One endpoint's way to write choices."""

    @property
    def head(self) -> "Head": ...
    def opening(self, choice: Choice) -> list[dict[str, Any]]: ...
    def delta(self, choice: Choice, delta: Delta) -> dict[str, Any]: ...
    def ending(self, choice: Choice) -> dict[str, Any]: ...
    def whole(self, choice: Choice, deltas: Sequence[Delta]) -> dict[str, Any]: ...


@dataclasses.dataclass(frozen=True)
class Head:
    """The fields around the choices."""

    prefix: str  # of ids
    whole: str  # object of an answer
    chunk: str  # object of a chunk
    model: str
    usage: bool  # whether a stream ends with a usage chunk
    identity: str = dataclasses.field(default_factory=lambda: secrets.token_hex(12))
    created: int = dataclasses.field(default_factory=lambda: int(time.time()))

    def answer(self, choices: Sequence[dict[str, Any]], **more: Any) -> dict[str, Any]:
        """A whole answer."""
        return self._fields(self.whole) | {"choices": list(choices)} | more

    def part(self, choices: Sequence[dict[str, Any]], **more: Any) -> dict[str, Any]:
        """A chunk of a stream."""
        nothing = {"usage": None} if self.usage else {}
        return self._fields(self.chunk) | {"choices": list(choices)} | nothing | more

    def _fields(self, kind: str) -> dict[str, Any]:
        return {"id": f"{self.prefix}-{self.identity}", "object": kind, "created": self.created, "model": self.model}


@dataclasses.dataclass(frozen=True)
class Extras:
    """What a request wants to know of each token."""

    text: TextModel
    logprobs: int | None  # alternatives; None: no logprobs
    origins: bool

    @property
    def wanted(self) -> bool:
        """Whether anything is."""
        return self.origins or self.logprobs is not None

    def origins_of(self, tokens: Sequence[TokenFacts]) -> dict[str, Any]:
        """The vendor's field, if asked for."""
        return {"token_origins": token_origins(tokens)} if self.origins else {}
