"""The JSON text of a call's arguments, written while its parameters arrive."""

from serve.chat.schema import ParameterType, Tool
from serve.chat.values import converted, json_text, string_text


class ArgumentText:
    """Each method returns the characters that it adds. In all they are the same however the values are cut."""

    def __init__(self, tool: Tool):
        self._tool = tool
        self._first = True
        self._value: _StringValue | _WholeValue | None = None
        self.pending = list(tool.parameters)  # parameters not given so far

    def begin(self) -> str:
        """Never nothing, so that a call that is cut off here is no valid JSON, not even to a lenient reader."""
        return "{"

    def parameter(self, key: str) -> str:
        """A parameter begins. One that comes twice is written twice; readers of JSON take the last."""
        kind = self._tool.type_of(key)
        if key in self.pending:
            self.pending.remove(key)
        self._value = _StringValue(nullable=kind.nullable) if kind.kind == "string" else _WholeValue(kind)
        separator, self._first = "" if self._first else ", ", False
        return f"{separator}{json_text(key)}: "

    def value(self, text: str) -> str:
        """The next characters of the parameter's value."""
        assert self._value is not None
        return self._value.feed(text)

    def end_value(self) -> str:
        """The value is whole."""
        assert self._value is not None
        value, self._value = self._value, None
        return value.end()

    def end(self) -> str:
        """The call is whole."""
        return "}"


class _WholeValue:
    """A value that is not known before its end."""

    def __init__(self, kind: ParameterType):
        self._kind = kind
        self._parts: list[str] = []

    def feed(self, text: str) -> str:
        self._parts.append(text)
        return ""

    def end(self) -> str:
        return converted("".join(self._parts), self._kind)


class _StringValue:
    """A string, written as it comes. Held back: a line end that may be the last, and what may become `null`."""

    def __init__(self, *, nullable: bool):
        self._nullable = nullable
        self._begun = False  # the quote is written
        self._held = ""

    def feed(self, text: str) -> str:
        text = self._held + text
        if not self._begun:
            if self._may_be_null(text):
                self._held = text
                return ""
            text = text.removeprefix("\n")
        shown = text.removesuffix("\n")
        self._held = text[len(shown) :]
        quote = "" if self._begun else '"'
        self._begun = True
        return quote + string_text(shown)

    def end(self) -> str:
        if self._begun:
            return '"'
        return converted(self._held, ParameterType("string", self._nullable))

    def _may_be_null(self, text: str) -> bool:
        """Also when there is no text yet: a first line end is not known before it comes."""
        word = text.removeprefix("\n").removesuffix("\n").lower()
        return not text or (self._nullable and "null".startswith(word))
