"""Answers of /v1/chat/completions."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from serve.chat import Content, Piece, Reasoning, ToolCallArguments, ToolCallBegin
from serve.http.answer.choice import Choice
from serve.http.answer.deltas import Delta
from serve.http.answer.facts import TokenFacts
from serve.http.answer.form import Extras, Head
from serve.http.answer.logprobs import chat_logprobs


@dataclasses.dataclass(frozen=True)
class ChatForm:
    """Choices with messages, or with deltas of one."""

    head: Head
    extras: Extras

    def opening(self, choice: Choice) -> list[dict[str, Any]]:
        """The chunk that names the role."""
        return [self._chunk(choice, {"role": "assistant", "content": ""}, None, ())]

    def delta(self, choice: Choice, delta: Delta) -> dict[str, Any]:
        """One chunk."""
        return self._chunk(choice, _delta(delta.piece), None, delta.tokens)

    def ending(self, choice: Choice) -> dict[str, Any]:
        """The chunk that says why the answer ends, and nothing else."""
        return self._chunk(choice, {}, choice.finish, ())

    def whole(self, choice: Choice, deltas: Sequence[Delta]) -> dict[str, Any]:
        """A message."""
        tokens = [facts for delta in deltas for facts in delta.tokens]
        return {
            "index": choice.index,
            "message": _message([delta.piece for delta in deltas]),
            "logprobs": self._logprobs(tokens),
            "finish_reason": choice.finish,
            **self.extras.origins_of(tokens),
        }

    def _chunk(
        self, choice: Choice, delta: dict[str, Any], finish: str | None, tokens: Sequence[TokenFacts]
    ) -> dict[str, Any]:
        return {
            "index": choice.index,
            "delta": delta,
            "logprobs": self._logprobs(tokens) if tokens else None,
            "finish_reason": finish,
            **self.extras.origins_of(tokens),
        }

    def _logprobs(self, tokens: Sequence[TokenFacts]) -> dict[str, Any] | None:
        return None if self.extras.logprobs is None else chat_logprobs(self.extras.text, tokens)


def _delta(piece: Piece) -> dict[str, Any]:
    match piece:
        case Content(text):
            return {"content": text}
        case Reasoning(text):
            return {"reasoning_content": text}
        case ToolCallBegin(index, identity, name):
            function = {"name": name, "arguments": ""}
            return {"tool_calls": [{"index": index, "id": identity, "type": "function", "function": function}]}
        case ToolCallArguments(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}


def _message(pieces: Sequence[Piece]) -> dict[str, Any]:
    content = "".join(piece.text for piece in pieces if isinstance(piece, Content))
    reasoning = "".join(piece.text for piece in pieces if isinstance(piece, Reasoning))
    calls = [
        {
            "id": begin.id,
            "type": "function",
            "function": {"name": begin.name, "arguments": _arguments(pieces, begin.index)},
        }
        for begin in pieces
        if isinstance(begin, ToolCallBegin)
    ]
    message: dict[str, Any] = {"role": "assistant", "content": None if calls and not content else content}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = calls
    return message


def _arguments(pieces: Sequence[Piece], index: int) -> str:
    parts = (piece for piece in pieces if isinstance(piece, ToolCallArguments))
    return "".join(piece.text for piece in parts if piece.index == index)
