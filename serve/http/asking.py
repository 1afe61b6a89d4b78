"""From the fields of a request to requests of the engine."""

import dataclasses
import re
from collections.abc import Sequence

from dspine_jax.request import MAX_STOP_IDS
from dspine_jax.sampling import SamplingParams
from dspine_jax.sampling.params import SamplingFields
from serve.engine import Handle, Request
from serve.http.errors import refused
from serve.http.model import Parts
from serve.http.schema.common import Generation

SEEDS = 2**64
DEFAULT_TEMPERATURE = 1.0  # OpenAI's
# Fields that go to `SamplingParams` as they are.
SAME = ("top_k", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "min_tokens")


@dataclasses.dataclass(frozen=True)
class Ask:
    """One HTTP request: `n` answers to each prompt, which differ in nothing but their seeds."""

    prompts: Sequence[Sequence[int]]
    n: int
    max_tokens: int
    stop_token_ids: tuple[int, ...]
    stop_strings: tuple[str, ...]
    sampling: SamplingParams

    @property
    def requests(self) -> list[Request]:
        """Answers to the first prompt come first."""
        return [
            Request(prompt, self.max_tokens, self.stop_token_ids, self._copy(copy))
            for prompt in self.prompts
            for copy in range(self.n)
        ]

    @property
    def prompt_tokens(self) -> int:
        """A prompt that has several answers counts once."""
        return sum(map(len, self.prompts))

    def _copy(self, copy: int) -> SamplingParams:
        """Answer number `copy` to a prompt is the only answer to the same request with the seed so much higher."""
        seed = self.sampling.seed
        return self.sampling if seed is None else dataclasses.replace(self.sampling, seed=(seed + copy) % SEEDS)


def ask(
    body: Generation,
    parts: Parts,
    prompts: Sequence[Sequence[int]],
    *,
    most_tokens: tuple[str, int | None],
    logprobs: int | None,
    max_choices: int,
) -> Ask:
    """Checks what can be told before the engine is asked.

    `most_tokens` is the name of the field that limits the answer, and its value; None is the rest of the context.
    Raises ApiError, 400.
    """
    if body.stream_options is not None and not body.stream:
        raise refused("stream_options belongs to stream: true", "stream_options", "invalid_value")
    n = body.n or 1
    field = "messages" if hasattr(body, "messages") else "prompt"
    _check_choices(n, len(prompts), parts, max_choices)
    for index, prompt in enumerate(prompts):
        _check_prompt(f"prompt {index}" if len(prompts) > 1 else "the prompt", prompt, parts, field)
    name, limit = most_tokens
    if limit is not None and limit < 1:
        raise refused(f"{name} is {limit}, wanted at least 1", name, "invalid_value")
    longest = max(map(len, prompts))
    if limit is None:
        limit = parts.context - longest
    if longest + limit > parts.context:
        raise refused(
            f"this model's context has {parts.context} tokens; the prompt has {longest} and {name} asks for {limit},"
            f" {longest + limit} in all; shorten the prompt or lower {name}",
            field,
            "context_length_exceeded",
        )
    stops = _stop_ids(body, parts)
    _check_stops(body, parts)
    best = parts.engine.config.max_logprobs
    if logprobs is not None and logprobs > best:
        name = "top_logprobs" if hasattr(body, "top_logprobs") else "logprobs"
        raise refused(f"{name} is {logprobs}, wanted at most {best}", name, "invalid_value")
    return Ask(
        prompts=prompts,
        n=n,
        max_tokens=limit,
        stop_token_ids=stops,
        stop_strings=body.stops,
        sampling=_sampling(body, parts, logprobs, stops, limit),
    )


def submit(parts: Parts, asked: Ask) -> list[Handle]:
    """All of its requests, or none. Raises ApiError and Unavailable."""
    handles: list[Handle] = []
    try:
        for request in asked.requests:
            handles.append(parts.engine.submit(request))
    except Exception as error:
        for handle in handles:
            handle.cancel()
        if isinstance(error, ValueError):
            raise _of_value(error) from None
        raise
    return handles


def _check_choices(n: int, prompts: int, parts: Parts, most: int) -> None:
    # More than the engine can hold would be refused whenever they came.
    room = min(most, parts.engine.config.slots + parts.engine.config.queue_limit)
    if n * prompts > room:
        what = f"n is {n}" if prompts == 1 else f"{prompts} prompts with n {n}"
        raise refused(f"{what}: wanted at most {room} answers in all", "n" if n > 1 else "prompt", "invalid_value")


def _check_prompt(what: str, prompt: Sequence[int], parts: Parts, field: str) -> None:
    if not prompt:
        raise refused(f"{what} is empty, wanted at least one token", field, "invalid_value")
    if (token := next((i for i in prompt if not 0 <= i < parts.vocab_size), None)) is not None:
        raise refused(f"{what} has token id {token}, wanted 0 to {parts.vocab_size - 1}", field, "invalid_value")
    if len(prompt) >= parts.context:
        raise refused(
            f"this model's context has {parts.context} tokens; {what} has {len(prompt)} and leaves no room for an"
            " answer; shorten it",
            field,
            "context_length_exceeded",
        )


def _stop_ids(body: Generation, parts: Parts) -> tuple[int, ...]:
    wanted = tuple(body.stop_token_ids or ())
    if (token := next((i for i in wanted if not 0 <= i < parts.vocab_size), None)) is not None:
        raise refused(
            f"stop_token_ids has {token}, wanted 0 to {parts.vocab_size - 1}", "stop_token_ids", "invalid_value"
        )
    stops = tuple(dict.fromkeys((() if body.ignore_eos else parts.eos_token_ids) + wanted))
    if len(stops) > MAX_STOP_IDS:
        raise refused(
            f"stop_token_ids and the model's own are {len(stops)}, wanted at most {MAX_STOP_IDS}",
            "stop_token_ids",
            "invalid_value",
        )
    return stops


def _check_stops(body: Generation, parts: Parts) -> None:
    try:
        parts.text.check_stop_strings(body.stops)
    except ValueError as error:
        raise refused(f"stop: {error}", "stop", "invalid_value") from None


def _sampling(
    body: Generation, parts: Parts, logprobs: int | None, stops: tuple[int, ...], limit: int
) -> SamplingParams:
    fields: SamplingFields = {"logprobs": logprobs}
    for name in SAME:
        if (value := getattr(body, name)) is not None:
            fields[name] = value
    fields["temperature"] = DEFAULT_TEMPERATURE if body.temperature is None else body.temperature
    if body.seed is not None:
        fields["seed"] = body.seed % SEEDS
    if body.logit_bias:
        fields["logit_bias"] = {int(token): value for token, value in body.logit_bias.items()}
    try:
        params = SamplingParams(**fields)
        params.check("the request", parts.vocab_size, stops, limit)
    except ValueError as error:
        raise _of_value(error) from None
    return params


def _of_value(error: ValueError) -> Exception:
    """A 400 that names the field which the message is about: the first one in it."""
    message = str(error).removeprefix("the request: ").replace("max_new_tokens", "max_tokens")
    names = "|".join(sorted((*SAME, "temperature", "seed", "logit_bias", "logprobs", "max_tokens"), key=len))
    found = re.search(rf"\b({names})\b", message)
    return refused(message, found[1] if found else None, "invalid_value")
