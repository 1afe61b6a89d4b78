"""Chat in text: the checkpoint's template for what the model reads, parsers for what it writes."""

from serve.chat.errors import ChatError
from serve.chat.output import ChatOutput
from serve.chat.pieces import Content, Piece, Reasoning, ToolCallArguments, ToolCallBegin
from serve.chat.template import RESERVED, ChatTemplate, starts_in_reasoning

__all__ = [
    "RESERVED",
    "ChatError",
    "ChatOutput",
    "ChatTemplate",
    "Content",
    "Piece",
    "Reasoning",
    "ToolCallArguments",
    "ToolCallBegin",
    "starts_in_reasoning",
]
