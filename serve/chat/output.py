"""An answer, from the text that the model writes to reasoning, content and calls."""

from collections.abc import Mapping, Sequence
from typing import Any

from serve.chat.pieces import Content, Piece, Reasoning, joined
from serve.chat.reasoning import ReasoningSplitter
from serve.chat.tool_calls import ToolCallParser


class ChatOutput:
    """One answer. Fed in pieces or at once, it gives the same characters in the same order.

    `reasoning` says whether the prompt ends inside `<think>` (see `starts_in_reasoning`). Calls are looked for only
    if there are `tools`, in OpenAI's form; without them their markup is text like any other.
    """

    def __init__(self, *, reasoning: bool, tools: Sequence[Mapping[str, Any]] | None):
        self._reasoning = ReasoningSplitter(reasoning=reasoning, calls=bool(tools))
        self._calls = ToolCallParser(tools) if tools else None

    @property
    def called_tools(self) -> bool:
        """Whether a call has begun."""
        return self._calls is not None and self._calls.calls > 0

    def feed(self, text: str) -> list[Piece]:
        """The pieces that the next characters of the answer make certain."""
        return self._pieces(*self._reasoning.feed(text))

    def finish(self, *, complete: bool = False) -> list[Piece]:
        """What was held back.

        `complete`: the model ended the answer itself, by its end-of-text token. Arguments of a call whose end tags are
        missing are then closed. Otherwise, as after a token limit or a stop string, they stay unfinished JSON, so
        that nobody runs half a command.
        """
        pieces = self._pieces(*self._reasoning.finish())
        if self._calls is None:
            return pieces
        return joined([*pieces, *self._calls.finish(complete=complete)])

    def _pieces(self, thought: str, rest: str) -> list[Piece]:
        said = [Content(rest)] if self._calls is None else self._calls.feed(rest)
        return joined([Reasoning(thought), *said])
