"""Prompts as token ids. All of it may take long for long texts: call it in a worker thread."""

from collections.abc import Mapping, Sequence
from typing import Any

from serve.chat import ChatError
from serve.http.errors import ApiError, refused
from serve.http.model import Parts
from serve.http.schema.chat import Message, TemplateFields
from serve.text import TextError


def render(
    parts: Parts, messages: Sequence[Message], fields: TemplateFields, tools: Sequence[Mapping[str, Any]]
) -> str:
    """The conversation as the chat template writes it. Raises ApiError."""
    if parts.template is None:
        raise ApiError(400, "this model has no chat template; use /v1/completions", code="no_chat_template")
    try:
        return parts.template.render(
            [message.as_template() for message in messages], tools=tools or None, **_template_arguments(fields)
        )
    except ChatError as error:
        raise refused(str(error), _field(str(error)), "invalid_value") from None


def encode(parts: Parts, text: str, field: str) -> list[int]:
    """Raises ApiError for a text that is no Unicode."""
    try:
        return parts.text.encode(text)
    except TextError as error:
        raise refused(f"{field}: {error}", field, "invalid_value") from None


def _template_arguments(fields: TemplateFields) -> dict[str, Any]:
    arguments = dict(fields.chat_template_kwargs or {})
    effort = fields.reasoning_effort
    if effort is not None:
        if arguments.get("reasoning_effort", effort) != effort:
            raise refused(
                "reasoning_effort is given twice, with two values; leave it out of chat_template_kwargs",
                "reasoning_effort",
                "invalid_value",
            )
        arguments["reasoning_effort"] = effort
    return arguments


def _field(message: str) -> str:
    """What a fault of the template is about; mostly the messages."""
    if "template argument" in message or "chat_template_kwargs" in message:
        return "chat_template_kwargs"
    return next((name for name in ("reasoning_effort", "tools") if message.startswith(name)), "messages")
