"""Where reasoning ends and the answer begins."""

from serve.chat.markup import END_THINK, THINK, opener
from serve.chat.tags import MORE, NO, Verdict, after_blanks, literal


class ReasoningSplitter:
    """Cuts text that arrives in pieces into reasoning and the rest, the same wherever the pieces are cut.

    `<think>` counts only at the very beginning: blanks and any number of `<think>` there are dropped, and reasoning
    begins if it has not. Reasoning ends before the first `</think>`, which is dropped, or before the first
    beginning of a call if calls are possible: `<tool_call>` and, after blanks, `<function=NAME>`. The name
    `<tool_call>` alone, as in a sentence about it, ends nothing. After the end everything is the rest.
    """

    def __init__(self, *, reasoning: bool, calls: bool):
        self._reasoning = reasoning
        self._calls = calls
        self._beginning = True
        self._held = ""

    def feed(self, text: str) -> tuple[str, str]:
        """The reasoning and the rest that are certain now; all of the former comes before all of the latter."""
        return self._take(text, final=False)

    def finish(self) -> tuple[str, str]:
        """What was held back."""
        return self._take("", final=True)

    def _take(self, piece: str, *, final: bool) -> tuple[str, str]:
        text, self._held = self._held + piece, ""
        if self._beginning:
            text = self._after_beginning(text, final=final)
        if not self._reasoning:
            return "", text
        at = text.find("<")
        while at >= 0:
            end = literal(text, at, END_THINK)
            call = opener(text, at) if self._calls else NO
            if not isinstance(end, Verdict) or not isinstance(call, Verdict):
                self._reasoning = False
                return text[:at], text[at if isinstance(end, Verdict) else end :]
            if MORE in (end, call) and not final:
                self._held = text[at:]
                return text[:at], ""
            at = text.find("<", at + 1)
        return text, ""

    def _after_beginning(self, text: str, *, final: bool) -> str:
        """The text after the tags at its beginning, or nothing while they are not whole; then all of it is held."""
        start = 0
        while True:
            end = after_blanks(text, start)
            end = end if isinstance(end, Verdict) else literal(text, end, THINK)
            if isinstance(end, Verdict):
                break
            start, self._reasoning = end, True
        if end is MORE and not final:
            self._held = text[start:] if self._reasoning else text
            return ""
        self._beginning = False
        return text[start:]
