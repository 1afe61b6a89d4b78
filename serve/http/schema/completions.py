"""POST /v1/completions."""

from typing import Annotated, Any, ClassVar

from pydantic import Field

from serve.http.schema.common import Generation, checked_by
from serve.http.schema.refused import COMPLETIONS, Refusals

WANTED = "wanted a string, a list of strings, a list of token ids, or a list of such lists"


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(i, int) and not isinstance(i, bool) for i in value)


def _check_prompt(value: Any) -> str | None:
    if isinstance(value, str):
        return None
    if not isinstance(value, list):
        return WANTED
    if not value:
        return "is empty"
    of_texts = all(isinstance(item, str) for item in value)
    return None if of_texts or _is_ids(value) or all(map(_is_ids, value)) else WANTED


Prompt = Annotated[str | list[str] | list[int] | list[list[int]], checked_by(_check_prompt)]


class CompletionRequest(Generation):
    """Prompts to be continued as they stand."""

    refusals: ClassVar[Refusals] = COMPLETIONS

    prompt: Prompt
    logprobs: Annotated[int | None, Field(ge=0)] = None

    @property
    def prompts(self) -> list[str | list[int]]:
        """One or more, each text or token ids."""
        prompt = self.prompt
        if isinstance(prompt, str) or _is_ids(prompt):
            return [prompt]  # pyright: ignore[reportReturnType]
        return list(prompt)  # pyright: ignore[reportReturnType]
