"""A parameter's text as a JSON value of the type that the tool's schema wants."""

import ast
import json
import math
import re
from typing import Any

from serve.chat.schema import ParameterType

LITERAL_LIMIT = 10_000

_INTEGER = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_SURROGATE = re.compile("[\ud800-\udfff]")


def json_text(value: Any) -> str:
    """JSON as `json.dumps` writes it, with characters outside ASCII as they are; half a surrogate pair is escaped.

    Raises ValueError for a value that JSON does not have.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return _SURROGATE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def string_text(text: str) -> str:
    """The characters between the quotes of a JSON string. Texts may be joined before or after."""
    return json_text(text)[1:-1]


def converted(text: str, kind: ParameterType) -> str:
    """JSON text of a value. What is no value of the type stays a string, so that nothing is lost.

    One line end before and one after the value belong to its tags.
    """
    text = text.removeprefix("\n").removesuffix("\n")
    if kind.kind == "string":
        return "null" if kind.nullable and text.lower() == "null" else json_text(text)
    stripped = text.strip()
    if stripped.lower() == "null":
        return "null"
    convert = {"integer": _integer, "number": _number, "boolean": _boolean}.get(kind.kind, _literal)
    try:
        return json_text(convert(stripped))
    except (ValueError, TypeError, RecursionError, MemoryError, SyntaxError):
        return json_text(text)


def _integer(text: str) -> int:
    if not _INTEGER.fullmatch(text):
        raise ValueError(text)
    return int(text)


def _number(text: str) -> int | float:
    if not _NUMBER.fullmatch(text):
        raise ValueError(text)
    if _INTEGER.fullmatch(text):
        return int(text)
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


def _literal(text: str) -> Any:
    """JSON, or else a Python literal, which models write as well."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except ValueError:
        # Parsing unknown escapes as Python would warn, and long texts could need much memory.
        if "\\" in text or len(text) > LITERAL_LIMIT:
            raise
    return _plain(ast.literal_eval(text))


def _plain(value: Any) -> Any:
    """Tuples as lists; TypeError for what JSON does not have."""
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise TypeError("a key of a JSON object is a string")
        return {key: _plain(item) for key, item in value.items()}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(type(value).__name__)


def _refuse(text: str) -> Any:
    raise ValueError(text)
