"""One of the answers to a request: from its engine request's events to deltas."""

import collections
from typing import Literal, Protocol

from serve.chat import ChatOutput, Content, Piece, ToolCallBegin
from serve.engine import EngineStopped, Event, Handle
from serve.http.answer.deltas import Delta, join, with_rest
from serve.http.answer.facts import TokenFacts, facts_of
from serve.http.answer.text import AnswerText

Finish = Literal["stop", "length", "tool_calls"]


class Parser(Protocol):
    """What `ChatOutput` does."""

    @property
    def called_tools(self) -> bool: ...
    def feed(self, text: str) -> list[Piece]: ...
    def finish(self, *, complete: bool = False) -> list[Piece]: ...


class Plain:
    """The parser of text that is nothing else."""

    called_tools = False

    def feed(self, text: str) -> list[Piece]:
        return [Content(text)] if text else []

    def finish(self, *, complete: bool = False) -> list[Piece]:
        return []


class Choice:
    """Feed it every event of its handle until `finish` is set; it cancels what need not be generated."""

    def __init__(
        self,
        index: int,
        handle: Handle,
        text: AnswerText,
        parser: ChatOutput | Plain,
        *,
        most_calls: int | None = None,
    ):
        self.index = index
        self.handle = handle
        self.finish: Finish | None = None
        self.completion_tokens = 0
        self.accepted: collections.Counter[int] = collections.Counter()  # cycles by accepted proposals
        self._text = text
        self._parser: Parser = parser
        self._most_calls = most_calls
        self._ready: list[TokenFacts] = []  # their text is out, but the parser has not given it yet

    def feed(self, event: Event) -> list[Delta]:
        """Deltas in order, neighbours joined. Raises what the request ended with, if it failed."""
        if event.error is not None:
            raise event.error
        if event.accepted is not None:
            self.accepted[event.accepted] += 1
        deltas: list[Delta] = []
        for facts in facts_of(event):
            self.completion_tokens += 1
            deltas += self._token(facts)
            if self.finish is not None:
                break
        if self.finish is not None:
            # Found here: the engine does not know it yet.
            if event.finish is None:
                self.handle.cancel()
        elif event.finish in ("stop", "length"):
            ended = event.finish == "stop"
            rest = self._parser.feed(self._text.finish())
            deltas += self._pieces([*rest, *self._parser.finish(complete=ended)])
            self.finish = "tool_calls" if ended and self._parser.called_tools else event.finish
        elif event.finish is not None:
            raise EngineStopped("the server is shutting down", 1.0)
        joined = join(deltas)
        if self.finish is None:
            return joined
        rest = self._ready + self._text.take() + self._text.take_rest()
        self._ready = []
        return with_rest(joined, rest)

    def _token(self, facts: TokenFacts) -> list[Delta]:
        shown = self._text.feed(facts)
        self._ready += self._text.take()
        deltas = self._pieces(self._parser.feed(shown)) if shown else []
        if self._text.stopped and self.finish is None:
            deltas += self._pieces(self._parser.finish())
            self.finish = "tool_calls" if self._parser.called_tools else "stop"
        return deltas

    def _pieces(self, pieces: list[Piece]) -> list[Delta]:
        deltas = []
        for piece in pieces:
            if isinstance(piece, ToolCallBegin) and self._most_calls is not None and piece.index >= self._most_calls:
                self.finish = "tool_calls"
                break
            deltas.append(Delta(piece, tuple(self._ready)))
            self._ready = []
        return deltas
