"""Fields that several kinds of request share."""

from collections.abc import Callable
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from serve.http.schema.refused import Refusals

MIN_SEED, MAX_SEED = -(2**63), 2**64 - 1
MAX_STOPS = 16
MAX_STOP_LENGTH = 1024


class Body(BaseModel):
    """Unknown fields are refused, and no value changes its type on the way. Null means that a field was left out."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    refusals: ClassVar[Refusals] = {}


def fault(message: str) -> PydanticCustomError:
    """A fault of a field, in a sentence of ours."""
    return PydanticCustomError("wrong", "{text}", {"text": message})


def checked_by(check: Callable[[Any], str | None]) -> BeforeValidator:
    """Runs before the type is looked at; `check` returns what is wrong. Faults of unions read badly otherwise."""

    def run(value: Any) -> Any:
        if (found := check(value)) is not None:
            raise fault(found)
        return value

    return BeforeValidator(run)


def _check_stop(value: Any) -> str | None:
    stops = [value] if isinstance(value, str) else value
    if stops is None:
        return None
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        return "wanted a string or a list of strings"
    if len(stops) > MAX_STOPS:
        return f"has {len(stops)} strings, wanted at most {MAX_STOPS}"
    if not all(stops):
        return "has an empty string, wanted at least one character"
    if any(len(stop) > MAX_STOP_LENGTH for stop in stops):
        return f"has a string of more than {MAX_STOP_LENGTH} characters"
    return None


def _check_bias(value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        return "wanted an object of token ids and numbers"
    for key, number in value.items():
        if not (key.isascii() and key.isdigit() and len(key) <= 10):
            return f"has the key {key[:40]!r}, wanted a token id"
        if isinstance(number, bool) or not isinstance(number, int | float):
            return f"of token {key} is no number"
    return None


Stop = Annotated[str | list[str] | None, checked_by(_check_stop)]
Bias = Annotated[dict[str, float] | None, checked_by(_check_bias)]


class StreamOptions(Body):
    """How an answer is streamed."""

    include_usage: bool | None = None


class Generation(Body):
    """What chat and text completions have in common."""

    model: str | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Bias = None
    seed: Annotated[int | None, Field(ge=MIN_SEED, le=MAX_SEED)] = None
    n: Annotated[int | None, Field(ge=1)] = None
    stop: Stop = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    token_origins: bool | None = None
    user: str | None = None
    metadata: dict[str, Any] | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        """Stop strings, none or more."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
