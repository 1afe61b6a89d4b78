"""POST /v1/chat/completions."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from serve.http.schema.common import Body, Generation, checked_by, fault
from serve.http.schema.refused import CHAT, Refusals

MAX_TOOLS = 256
ROLES = ("system", "developer", "user", "assistant", "tool")


def _check_content(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return None
    if not isinstance(value, list):
        return "wanted a string or a list of text parts"
    for index, part in enumerate(value):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "text" and isinstance(part.get("text"), str) and len(part) == 2:
            continue
        if isinstance(kind, str) and kind != "text":
            return f"part {index} has type {kind[:40]!r}; this model reads text only"
        return f'part {index}: wanted {{"type": "text", "text": "..."}}'
    return None


def _check_role(value: Any) -> str | None:
    if value in ROLES:
        return None
    return f"is {str(value)[:40]!r}, wanted one of {', '.join(ROLES)}"


def _check_choice(value: Any) -> str | None:
    if value in (None, "auto", "none"):
        return None
    if value == "required" or isinstance(value, dict):
        return 'a call cannot be forced: not supported; wanted "auto" or "none"'
    return 'wanted "auto" or "none"'


class TextPart(Body):
    """A part of a message's content."""

    type: Literal["text"]
    text: str


class CalledFunction(Body):
    """What an assistant called."""

    name: Annotated[str, Field(min_length=1)]
    arguments: str


class ToolCall(Body):
    """One call of an earlier answer."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None


class Message(Body):
    """One message. What an answer's message has may come back as it was."""

    role: Annotated[Literal["system", "developer", "user", "assistant", "tool"], checked_by(_check_role)]
    content: Annotated[str | list[TextPart] | None, checked_by(_check_content)] = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    refusal: None = None
    annotations: Annotated[list[Any] | None, Field(max_length=0)] = None
    audio: None = None
    function_call: None = None

    @model_validator(mode="after")
    def _fits_role(self) -> "Message":
        if self.role != "assistant":
            for name in ("tool_calls", "reasoning_content"):
                if getattr(self, name) is not None:
                    raise fault(f"a message of role {self.role} has {name}, which belongs to an assistant")
            if self.content is None:
                raise fault(f"a message of role {self.role} has no content")
        if self.role != "tool" and self.tool_call_id is not None:
            raise fault(f"a message of role {self.role} has tool_call_id, which belongs to a tool")
        return self

    def as_template(self) -> dict[str, Any]:
        """For the chat template: the content as one string, and "developer" under its older name."""
        made = self.model_dump(exclude_none=True, exclude={"annotations", "content"})
        parts = self.content
        made["content"] = "".join(part.text for part in parts) if isinstance(parts, list) else parts or ""
        if self.role == "developer":
            made["role"] = "system"
        for call in made.get("tool_calls", ()):
            call.pop("index", None)
        return made


class Function(Body):
    """A function that the model may call."""

    name: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[^\s<>]+$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: Literal[False] | None = None


class Tool(Body):
    """Only functions."""

    type: Literal["function"]
    function: Function


Messages = Annotated[list[Message], Field(min_length=1)]


class TemplateFields(Body):
    """What decides, beside its messages, how a conversation reads as a prompt."""

    tools: Annotated[list[Tool] | None, Field(max_length=MAX_TOOLS)] = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None

    @property
    def tool_list(self) -> list[dict[str, Any]]:
        """As the template takes them."""
        return [tool.model_dump(exclude_none=True) for tool in self.tools or ()]


class ChatRequest(TemplateFields, Generation):
    """A conversation to be answered."""

    refusals: ClassVar[Refusals] = CHAT

    messages: Messages
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int | None, Field(ge=0)] = None
    tool_choice: Annotated[str | None, checked_by(_check_choice)] = None
    parallel_tool_calls: bool | None = None

    @property
    def offered_tools(self) -> list[dict[str, Any]]:
        """The tools that the model is told of: none with tool_choice "none"."""
        return [] if self.tool_choice == "none" else self.tool_list
