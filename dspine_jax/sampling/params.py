"""What one request may ask of sampling. Every accepted field is honoured; anything else is refused here."""

import dataclasses
import math
import numbers
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

MAX_SEED = 2**64 - 1
MAX_LOGPROBS = 64
# Within these bounds no float32 overflows, whatever the length.
MIN_TEMPERATURE, MAX_TEMPERATURE = 1e-6, 1e6
MAX_PENALTY = 1e3
MAX_BIAS = 1e6


class SamplingFields(TypedDict, total=False):
    """The fields of `SamplingParams` as keyword arguments."""

    temperature: float
    top_k: int | None
    top_p: float | None
    min_p: float | None
    seed: int | None
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logit_bias: Mapping[int, float] | None
    min_tokens: int
    bad_token_ids: Sequence[int]
    allowed_token_ids: Sequence[int] | None
    logprobs: int | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """One request. The defaults change nothing: greedy, no filter, no processor, no logprobs.

    Order of effects on the logits of one row: repetition, frequency and presence penalty, `logit_bias`, token masks,
    temperature, `top_k`, `top_p` on what is left renormalised, `min_p`. Raises ValueError for a value out of range.
    """

    temperature: float = 0.0  # 0: greedy, the lowest id wins a tie
    top_k: int | None = None  # exactly this many tokens stay
    top_p: float | None = None  # a token stays while the mass before it is below this
    min_p: float | None = None  # a token stays from this share of the greatest probability on
    seed: int | None = None  # None: a fresh one from the operating system, told in the result
    presence_penalty: float = 0.0  # subtracted once from every token emitted before
    frequency_penalty: float = 0.0  # subtracted for each time it was emitted
    repetition_penalty: float = 1.0  # divides positive logits of prompt and emitted tokens, multiplies negative ones
    logit_bias: Mapping[int, float] | None = None  # added to the logits of these ids
    min_tokens: int = 0  # stop tokens are impossible before this many tokens were emitted
    bad_token_ids: Sequence[int] = ()  # impossible
    allowed_token_ids: Sequence[int] | None = None  # all others are impossible
    logprobs: int | None = None  # 0: of the emitted tokens; n: of the n best tokens as well

    def __post_init__(self) -> None:
        _number("temperature", self.temperature, 0.0, MAX_TEMPERATURE)
        if self.temperature is not None and 0 < self.temperature < MIN_TEMPERATURE:
            raise ValueError(f"temperature is {self.temperature!r}, wanted 0 (greedy) or at least {MIN_TEMPERATURE:g}")
        _optional_int("top_k", self.top_k, 1, None)
        _number("top_p", self.top_p, 0.0, 1.0, above_low=True)
        _number("min_p", self.min_p, 0.0, 1.0)
        _optional_int("seed", self.seed, 0, MAX_SEED)
        _number("presence_penalty", self.presence_penalty, -MAX_PENALTY, MAX_PENALTY)
        _number("frequency_penalty", self.frequency_penalty, -MAX_PENALTY, MAX_PENALTY)
        _number("repetition_penalty", self.repetition_penalty, 1 / MAX_PENALTY, MAX_PENALTY)
        _optional_int("min_tokens", self.min_tokens, 0, None)
        _optional_int("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        for name in ("temperature", "presence_penalty", "frequency_penalty", "repetition_penalty", "min_tokens"):
            if getattr(self, name) is None:
                raise ValueError(f"{name} is None, wanted a number; leave it out for the default")
        # Stored as plain immutable values, so that a request cannot change after it was checked.
        bias = dict(self.logit_bias or {})
        for token, value in bias.items():
            _optional_int("a token id in logit_bias", token, 0, None)
            _number(f"logit_bias of token {token}", value, -MAX_BIAS, MAX_BIAS)
        object.__setattr__(self, "logit_bias", {int(k): float(v) for k, v in bias.items()} or None)
        object.__setattr__(self, "bad_token_ids", _ids("bad_token_ids", self.bad_token_ids))
        if self.allowed_token_ids is not None:
            allowed = _ids("allowed_token_ids", self.allowed_token_ids)
            if not allowed:
                raise ValueError("allowed_token_ids is empty: no token could be emitted; leave it out to allow all")
            object.__setattr__(self, "allowed_token_ids", allowed)

    @property
    def sampled(self) -> bool:
        """Whether random numbers are drawn."""
        return self.temperature > 0

    @property
    def processed(self) -> bool:
        """Whether any logit is changed before the temperature."""
        return (
            self.presence_penalty != 0
            or self.frequency_penalty != 0
            or self.repetition_penalty != 1
            or self.logit_bias is not None
            or self.min_tokens > 0
            or bool(self.bad_token_ids)
            or self.allowed_token_ids is not None
        )

    def check(self, what: str, vocab_size: int, stop_token_ids: Sequence[int], max_new_tokens: int) -> None:
        """Raises ValueError for ids outside the vocabulary, and for masks that leave no token.

        `min_tokens` beyond `max_new_tokens` is refused too: it could not be honoured.
        """
        named = {
            "logit_bias": self.logit_bias or (),
            "bad_token_ids": self.bad_token_ids,
            "allowed_token_ids": self.allowed_token_ids or (),
        }
        for name, ids in named.items():
            if outside := [token for token in ids if token >= vocab_size]:
                raise ValueError(f"{what}: {name} has id {outside[0]}, wanted 0 to {vocab_size - 1}")
        if self.min_tokens > max_new_tokens:
            raise ValueError(f"{what}: min_tokens is {self.min_tokens}, but max_new_tokens is only {max_new_tokens}")
        if self.logprobs is not None and self.logprobs > vocab_size:
            raise ValueError(f"{what}: logprobs is {self.logprobs}, the vocabulary has only {vocab_size} tokens")
        left = set(range(vocab_size) if self.allowed_token_ids is None else self.allowed_token_ids)
        left -= set(self.bad_token_ids)
        if self.min_tokens:
            left -= set(stop_token_ids)
        if not left:
            raise ValueError(f"{what}: allowed_token_ids, bad_token_ids and min_tokens together leave no token to emit")


def per_request(
    count: int, sampling: Sequence[SamplingParams] | None, fields: Mapping[str, Any]
) -> tuple[SamplingParams, ...]:
    """One `SamplingParams` per prompt, from a list or from fields that all prompts share; not both."""
    if sampling is None:
        known = {field.name for field in dataclasses.fields(SamplingParams)}
        if unknown := sorted(set(fields) - known):
            raise TypeError(f"unknown argument {unknown[0]!r}; known are {', '.join(sorted(known))}")
        return (SamplingParams(**fields),) * count
    if fields:
        raise ValueError(f"got sampling and {sorted(fields)[0]} as well; put everything into sampling")
    if len(sampling) != count:
        raise ValueError(f"got {len(sampling)} entries in sampling for {count} prompts, wanted one each")
    for index, params in enumerate(sampling):
        if not isinstance(params, SamplingParams):
            raise TypeError(f"sampling[{index}] is {type(params).__name__}, wanted SamplingParams")
    return tuple(sampling)


def _number(name: str, value: Any, low: float, high: float, *, above_low: bool = False) -> None:
    if value is None:
        return
    number = float(value) if isinstance(value, numbers.Real) and not isinstance(value, bool) else math.nan
    if not low <= number <= high or (above_low and number == low):
        least = "above" if above_low else "at least"
        raise ValueError(f"{name} is {value!r}, wanted a number {least} {low:g} and at most {high:g}")


def _optional_int(name: str, value: Any, low: int, high: int | None) -> None:
    if value is None:
        return
    number = int(value) if isinstance(value, numbers.Integral) and not isinstance(value, bool) else low - 1
    if number < low or (high is not None and number > high):
        wanted = f"at least {low}" if high is None else f"{low} to {high}"
        raise ValueError(f"{name} is {value!r}, wanted an integer, {wanted}")


def _ids(name: str, ids: Sequence[int]) -> tuple[int, ...]:
    for token in ids:
        if token is None:
            raise ValueError(f"{name} has None, wanted token ids")
        _optional_int(f"a token id in {name}", token, 0, None)
    return tuple(dict.fromkeys(int(token) for token in ids))
