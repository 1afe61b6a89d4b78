"""Messages in OpenAI's form as templates read them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from serve.chat.errors import ChatError

_REASONING = ("reasoning_content", "thinking", "reasoning")


def plain(value: Any, where: str) -> Any:
    """A copy out of JSON's own types, since a template may call methods of what it is given.

    Raises ChatError for anything else.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ChatError(f"{where} has the key {key!r}; wanted a string")
        return {key: plain(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, f"{where}[{index}]") for index, item in enumerate(value)]
    raise ChatError(f"{where} is a {type(value).__name__}; wanted what JSON can hold")


def for_template(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Copies of the messages: fields without a value left out, reasoning under each name that templates and clients
    use, arguments of calls as objects.

    Raises ChatError when arguments are no JSON object.
    """
    return [_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _message(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    copied = {key: value for key, value in plain(message, where).items() if value is not None}
    reasoning = next((copied[name] for name in _REASONING if name in copied), None)
    if reasoning is not None:
        copied = {"thinking": reasoning} | copied | {"reasoning_content": reasoning}
    calls = copied.get("tool_calls")
    for index, call in enumerate(calls if isinstance(calls, list) else []):
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict) and isinstance(function.get("arguments"), str):
            function["arguments"] = _arguments(function["arguments"], f"{where}.tool_calls[{index}]")
    return copied


def _arguments(text: str, where: str) -> dict[str, Any]:
    """Clients send a call without arguments as an empty string, too."""
    try:
        value = json.loads(text, parse_constant=_no_constant) if text.strip() else {}
    except (ValueError, RecursionError) as error:
        raise ChatError(f"{where}.function.arguments is no valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ChatError(f"{where}.function.arguments is a JSON {type(value).__name__}; wanted an object")
    return value


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")
