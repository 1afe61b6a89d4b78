"""POST /tokenize and /detokenize."""

from typing import Annotated

from pydantic import Field, model_validator

from serve.http.schema.chat import Messages, TemplateFields
from serve.http.schema.common import Body, fault


class TokenizeRequest(TemplateFields):
    """A text, or a conversation as the chat template writes it."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> "TokenizeRequest":
        if (self.prompt is None) == (self.messages is None):
            raise fault("wanted prompt or messages, one of both")
        if self.prompt is not None:
            for name in TemplateFields.model_fields:
                if getattr(self, name) is not None:
                    raise fault(f"{name} belongs to messages, not to a prompt")
        return self


class DetokenizeRequest(Body):
    """Token ids."""

    model: str | None = None
    tokens: list[Annotated[int, Field(ge=0)]]
