"""A checkpoint's chat template: messages become the prompt."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from jinja2 import TemplateError, TemplateSyntaxError

from serve.chat.budget import BudgetError, Limits
from serve.chat.errors import ChatError
from serve.chat.markup import END_THINK, THINK
from serve.chat.messages import for_template, plain
from serve.chat.sandbox import compiled
from serve.chat.template_files import read_special_tokens, read_templates
from serve.text import TextError

# What `render` gives to a template itself; no template argument may have such a name.
RESERVED = frozenset({"messages", "tools", "documents", "add_generation_prompt", "continue_final_message"})

_MARK = "\ue000end of the final message\ue001 "


@dataclasses.dataclass(frozen=True)
class ChatTemplate:
    """The template of a model folder. `render` may be called from many threads."""

    default: Callable[[dict[str, Any]], str]
    tool_use: Callable[[dict[str, Any]], str]  # the same one unless the checkpoint has two
    special_tokens: Mapping[str, Any]

    @classmethod
    def read(cls, folder: Path, *, limits: Limits | None = None) -> Self:
        """Reads chat_template.jinja, or the template in tokenizer_config.json, and that file's special tokens.

        Raises TextError when there is no template, or it is broken or larger than 1 MiB.
        """
        sources = read_templates(folder)
        functions = {
            name: _compile(source, f"{folder}: chat template {name!r}", limits or Limits())
            for name, source in sources.items()
            if name in ("default", "tool_use")
        }
        default = functions["default"]
        return cls(default, functions.get("tool_use", default), read_special_tokens(folder))

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **template_kwargs: Any,
    ) -> str:
        """The prompt. Messages and tools are in OpenAI's form; other arguments reach the template as they are.

        With `continue_final_message` the prompt ends with the last message's text, for the model to go on with.

        Raises ChatError, whose message is for the caller: the template refuses the messages or fails on them, or does
        more than it may.
        """
        if not messages:
            raise ChatError("messages is empty; wanted at least one message")
        if taken := RESERVED & template_kwargs.keys():
            raise ChatError(f"the template argument {min(taken)!r} is set by the request itself; leave it out")
        chat = for_template(messages)
        final = None
        if continue_final_message:
            if add_generation_prompt:
                raise ChatError("continue_final_message needs add_generation_prompt: false; a new answer was asked for")
            final = _mark(chat[-1])
        variables = {
            **self.special_tokens,
            **plain(template_kwargs, "chat_template_kwargs"),
            "messages": chat,
            "tools": plain(list(tools), "tools") if tools else None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        text = _render(self.tool_use if tools else self.default, variables)
        return text if final is None else _cut(text, final)


def starts_in_reasoning(prompt: str, *, continued: str = "") -> bool:
    """Whether the model's answer to this prompt begins inside reasoning: the prompt ends with an open `<think>`.

    `continued` is the final message's text where the prompt ends with it; it may have opened reasoning earlier.
    """
    return prompt.rstrip().endswith(THINK) or continued.rfind(THINK) > continued.rfind(END_THINK)


def _compile(source: str, where: str, limits: Limits) -> Callable[[dict[str, Any]], str]:
    try:
        return compiled(source, limits)
    except TemplateSyntaxError as error:
        raise TextError(f"{where}, line {error.lineno}: {error.message}") from None
    except (TemplateError, RecursionError, MemoryError, SyntaxError, ValueError) as error:
        raise TextError(f"{where}: cannot be compiled: {error or type(error).__name__}") from None


def _render(template: Callable[[dict[str, Any]], str], variables: dict[str, Any]) -> str:
    try:
        return template(variables)
    except BudgetError as error:
        raise ChatError(f"the chat template was stopped: {error}; send less, or use another template") from None
    except TemplateError as error:
        raise ChatError(f"the chat template refuses the request: {error}") from None
    except Exception as error:  # an expression of the template may raise anything
        raise ChatError(f"the chat template fails on the request: {type(error).__name__}: {error}") from None


def _mark(message: dict[str, Any]) -> str:
    """Puts a mark behind the message's text, and returns the text."""
    content = message.get("content")
    if isinstance(content, str):
        message["content"] = content + _MARK
        return content
    for part in reversed(content if isinstance(content, list) else []):
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            text, part["text"] = part["text"], part["text"] + _MARK
            return text
    raise ChatError("continue_final_message: the final message has no text to go on with")


def _cut(text: str, final: str) -> str:
    """The prompt up to the mark. Where the template has trimmed the message, trailing blanks go with it."""
    end = text.rfind(_MARK.strip())
    if end < 0 or final.strip() not in text:
        raise ChatError("continue_final_message: the chat template does not write the final message as it is")
    return text[:end] if text.startswith(_MARK, end) else text[:end].rstrip()
