"""Answers of /v1/completions."""

import collections
import dataclasses
from collections.abc import Sequence
from typing import Any

from serve.chat import Content
from serve.http.answer.choice import Choice
from serve.http.answer.deltas import Delta
from serve.http.answer.facts import TokenFacts
from serve.http.answer.form import Extras, Head
from serve.http.answer.logprobs import completion_logprobs


@dataclasses.dataclass(frozen=True)
class CompletionForm:
    """Choices with text."""

    head: Head
    extras: Extras
    # Characters of each choice that came before.
    _offsets: collections.Counter[int] = dataclasses.field(default_factory=collections.Counter)

    def opening(self, choice: Choice) -> list[dict[str, Any]]:
        """Nothing: text has no role."""
        return []

    def delta(self, choice: Choice, delta: Delta) -> dict[str, Any]:
        """One chunk."""
        return self._choice(choice, _text([delta]), None, delta.tokens)

    def ending(self, choice: Choice) -> dict[str, Any]:
        """The chunk that says why the answer ends, and nothing else."""
        return self._choice(choice, "", choice.finish, ())

    def whole(self, choice: Choice, deltas: Sequence[Delta]) -> dict[str, Any]:
        """The whole text."""
        return self._choice(choice, _text(deltas), choice.finish, [f for delta in deltas for f in delta.tokens])

    def _choice(self, choice: Choice, text: str, finish: str | None, tokens: Sequence[TokenFacts]) -> dict[str, Any]:
        best, found = self.extras.logprobs, None
        if best is not None and tokens:
            found = completion_logprobs(self.extras.text, tokens, self._offsets[choice.index], best)
            self._offsets[choice.index] += sum(len(facts.text) for facts in tokens)
        return {
            "index": choice.index,
            "text": text,
            "logprobs": found,
            "finish_reason": finish,
            **self.extras.origins_of(tokens),
        }


def _text(deltas: Sequence[Delta]) -> str:
    return "".join(delta.piece.text for delta in deltas if isinstance(delta.piece, Content))
