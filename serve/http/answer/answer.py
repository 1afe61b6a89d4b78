"""An answer in the making."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from serve.http.answer.choice import Choice
from serve.http.answer.deltas import Delta
from serve.http.answer.form import Form
from serve.http.answer.usage import cached_tokens, speculation, usage
from serve.http.observing import Observation


@dataclasses.dataclass(frozen=True, eq=False)
class Answer:
    """What streaming and whole answers are made from."""

    form: Form
    choices: Sequence[Choice]
    prompt_tokens: int
    proposals: int  # of each cycle
    observed: Observation
    chunks_of_tokens: bool  # a delta without text is still worth a chunk, for what it tells of its tokens

    @property
    def usage(self) -> dict[str, Any]:
        """OpenAI's usage object."""
        return usage(self.prompt_tokens, self.choices)

    @property
    def metrics(self) -> dict[str, Any]:
        """The vendor's metrics object."""
        return speculation(self.choices, self.proposals)

    def observe(self, outcome: str) -> None:
        """Tells how it ended; only the first time counts."""
        self.observed.end(
            outcome,
            prompt_tokens=self.prompt_tokens,
            completion_tokens=sum(choice.completion_tokens for choice in self.choices),
            cached_tokens=cached_tokens(self.choices),
        )

    @property
    def outcome(self) -> str:
        """Why it ended well: the first choice's reason."""
        return str(self.choices[0].finish)

    def worth_a_chunk(self, delta: Delta) -> bool:
        """Whether anybody would miss it."""
        return self.chunks_of_tokens or getattr(delta.piece, "text", None) != ""
