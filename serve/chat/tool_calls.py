"""Calls in the `qwen3_coder` format, from text that arrives in pieces."""

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from serve.chat.argument_text import ArgumentText
from serve.chat.markup import (
    END_CALL,
    END_FUNCTION,
    END_PARAMETER,
    FUNCTION,
    PARAMETER,
    end_of_value,
    opener,
)
from serve.chat.pieces import Content, Piece, ToolCallArguments, ToolCallBegin, joined
from serve.chat.schema import Tool, read_tools
from serve.chat.tags import BLANK, MORE, NO, Named, Verdict, after_blanks, before_blanks, literal, named, one_of


class ToolCallParser:
    """Text around calls becomes content, calls become their name and the JSON text of their arguments.

    The pieces, joined, are the same wherever the text is cut. A step looks at the text that is not yet decided, takes
    what is certain, and says whether the next step may find more; what stays behind is the beginning of a tag, or
    blanks, which belong to a call if one follows.
    """

    def __init__(self, tools: Sequence[Mapping[str, Any]]):
        self._tools = read_tools(tools)
        self._bare = [f"{FUNCTION}{name}>" for name in self._tools]
        self._text = ""
        self._step = self._content
        self._pieces: list[Piece] = []
        self._final = False
        self._edge = True  # nothing was said since the beginning, or since the last call
        self._stray = False  # inside a call, in text that is no markup
        self._arguments = ArgumentText(Tool({}))
        self.calls = 0

    def feed(self, text: str) -> list[Piece]:
        """What the text makes certain."""
        self._text += text
        while self._step():
            pass
        pieces, self._pieces = self._pieces, []
        return joined(pieces)

    def finish(self, *, complete: bool) -> list[Piece]:
        """What was held back. The arguments of a call without its end are closed only if the answer is complete."""
        self._final = True
        pieces = self.feed("")
        closing = ""
        if complete and self._step == self._value:
            closing = self._arguments.end_value()
        if complete and self._step in (self._value, self._between):
            closing += self._arguments.end()
        self._argue(closing)
        return joined([*pieces, *self._pieces])

    def _content(self) -> bool:
        text = self._text
        at = text.find("<")
        while at >= 0:
            start = before_blanks(text, at)
            found = self._call_at(start, at)
            if isinstance(found, Named):
                self._say(text[:start])
                self._begin(found)
                return True
            if found is MORE and not self._final:
                self._say(text[:start])
                self._text = text[start:]
                return False
            at = text.find("<", at + 1)
        end = before_blanks(text, len(text))
        if self._final and not (end == 0 and self._edge and self.calls):
            end = len(text)
        self._say(text[:end])
        self._text = text[end:]
        return False

    def _call_at(self, start: int, at: int) -> Named | Verdict:
        """A call at `at`, with blanks before it from `start` on."""
        found = opener(self._text, at)
        if found is not NO or not ((start == 0 and self._edge) or "\n" in self._text[start:at]):
            return found
        # Models forget <tool_call>. At the beginning of a line the name of a tool is enough.
        end = one_of(self._text, at, self._bare)
        return end if isinstance(end, Verdict) else Named(end, self._text[at + len(FUNCTION) : end - 1])

    def _begin(self, call: Named) -> None:
        self._text = self._text[call.end :]
        self._arguments = ArgumentText(self._tools.get(call.name, Tool({})))
        self._pieces.append(ToolCallBegin(self.calls, f"call_{secrets.token_hex(12)}", call.name))
        self.calls += 1
        self._argue(self._arguments.begin())
        self._stray = False
        self._step = self._between

    def _between(self) -> bool:
        if not self._stray:
            self._text = self._text.lstrip(BLANK)
        text = self._text
        if not text.startswith("<"):
            end = text.find("<")
            self._take_stray(len(text) if end < 0 else end)
            return end > 0
        key = named(text, 0, PARAMETER)
        if isinstance(key, Named):
            self._argue(self._arguments.parameter(key.name))
            self._go(key.end, self._value)
            return True
        end = literal(text, 0, END_FUNCTION)
        if not isinstance(end, Verdict):
            self._argue(self._arguments.end())
            self._go(end, self._after)
            return True
        return self._forgotten(MORE in (key, end))

    def _forgotten(self, undecided: bool) -> bool:
        """Inside a call, a tag that is out of order: an end tag before it was forgotten, or it is one too many."""
        text = self._text
        found = [named(text, 0, FUNCTION), opener(text, 0)]
        for call in found:
            if isinstance(call, Named):
                self._argue(self._arguments.end())
                self._begin(call)
                return True
        end = literal(text, 0, END_CALL)
        if not isinstance(end, Verdict):
            self._argue(self._arguments.end())
            self._leave(end)
            return True
        twice = literal(text, 0, END_PARAMETER)
        if not isinstance(twice, Verdict):
            self._go(twice, self._between)
            return True
        if undecided or MORE in (*found, end, twice):
            self._text = "" if self._final else text
            return False
        self._take_stray(1)
        return True

    def _value(self) -> bool:
        text = self._text
        at = text.find("<")
        while at >= 0:
            end = end_of_value(text, at, self._arguments.pending, self._final)
            if end is MORE:
                self._argue(self._arguments.value(text[:at]))
                self._text = text[at:]
                return False
            if not isinstance(end, Verdict):
                self._argue(self._arguments.value(text[:at]) + self._arguments.end_value())
                self._go(end, self._between)
                return True
            at = text.find("<", at + 1)
        self._argue(self._arguments.value(text))
        self._text = ""
        return False

    def _after(self) -> bool:
        """Behind `</function>`: `</tool_call>`, or the next function of the same block."""
        at = after_blanks(self._text, 0)
        end = at if isinstance(at, Verdict) else literal(self._text, at, END_CALL)
        if not isinstance(end, Verdict):
            self._leave(end)
            return True
        following = at if isinstance(at, Verdict) else named(self._text, at, FUNCTION)
        if isinstance(following, Named):
            self._begin(following)
            return True
        if MORE in (end, following):
            self._text = "" if self._final else self._text
            return False
        self._leave(0)
        return True

    def _leave(self, at: int) -> None:
        self._edge = True
        self._go(at, self._content)

    def _go(self, at: int, step) -> None:
        self._text = self._text[at:]
        self._stray = False
        self._step = step

    def _take_stray(self, count: int) -> None:
        """Text inside a call that is no markup is said, not lost."""
        self._stray = self._stray or count > 0
        self._pieces.append(Content(self._text[:count]))
        self._text = self._text[count:]

    def _say(self, text: str) -> None:
        self._edge = self._edge and not text
        self._pieces.append(Content(text))

    def _argue(self, text: str) -> None:
        self._pieces.append(ToolCallArguments(self.calls - 1, text))
