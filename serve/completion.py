"""One prompt continued as text, cycle by cycle, and timed."""

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import numpy as np

from dspine_jax.generate import FinishReason, Stats, Stream
from dspine_jax.pair import Pair
from dspine_jax.sampling import SamplingParams
from dspine_jax.sampling.logprobs import Logprobs
from dspine_jax.sampling.width import Method, WidthCosts
from serve.stop_strings import StopStrings
from serve.text import Detokenizer, TextModel


@dataclasses.dataclass(frozen=True)
class Request:
    """A checked request: `stop_token_ids` is what really ends it, no longer a default."""

    prompt: Sequence[int]
    max_new_tokens: int
    stop_token_ids: tuple[int, ...]
    stop_strings: tuple[str, ...] = ()
    sampling: SamplingParams = dataclasses.field(default_factory=SamplingParams)
    verification: Method = "token"
    verify_width: int | Literal["auto"] | None = None
    width_costs: WidthCosts | None = None

    def stream(self, pair: Pair, *, speculative: bool) -> Stream:
        """The engine's side of the request, its prompt already on the way."""
        return Stream(
            pair,
            self.prompt,
            max_new_tokens=self.max_new_tokens,
            stop_token_ids=self.stop_token_ids,
            speculative=speculative,
            sampling=self.sampling,
            verification=self.verification if speculative else "token",
            verify_width=self.verify_width if speculative else None,
            width_costs=self.width_costs if speculative else None,
        )


@dataclasses.dataclass(frozen=True)
class Timing:
    """Wall time of the engine; what happens to the text between two cycles is not counted."""

    prompt_seconds: float  # from the request to its first token
    decode_seconds: float  # all further cycles
    decoded_tokens: int  # tokens of these cycles

    @property
    def tokens_per_second(self) -> float | None:
        """Decoding speed after the first token; None when there was only that one."""
        return self.decoded_tokens / self.decode_seconds if self.decoded_tokens else None


@dataclasses.dataclass(frozen=True)
class Completion:
    """A finished request. `stats` counts whole cycles: also the last one's tokens after a stop string."""

    text: str  # without the stop string or the end-of-text token
    token_ids: list[int]  # up to and with the token that ended the text
    finish_reason: FinishReason
    stats: Stats
    timing: Timing
    seed: int | None = None  # of a sampled request
    logprobs: Logprobs | None = None  # of `token_ids`, where asked for


class CompletionText:
    """Turns accepted tokens into text to show, and finds the stop strings in it."""

    def __init__(self, text: TextModel, request: Request):
        self._detokenizer = Detokenizer(text, hidden=request.stop_token_ids)
        self._stops = StopStrings(request.stop_strings)
        self._shown: list[str] = []
        self.token_ids: list[int] = []

    @property
    def text(self) -> str:
        """Everything returned so far."""
        return "".join(self._shown)

    @property
    def stopped(self) -> bool:
        """A stop string was found: nothing that follows is part of the text."""
        return self._stops.matched is not None

    def feed(self, tokens: Sequence[int] | np.ndarray) -> str:
        """The text to show for these tokens; those after the one that completes a stop string are dropped."""
        start = len(self._shown)
        for token in tokens:
            self.token_ids.append(int(token))
            self._shown.append(self._stops.feed(self._detokenizer.feed(int(token))))
            if self.stopped:
                break
        return "".join(self._shown[start:])

    def finish(self) -> str:
        """The text held back until now."""
        if self.stopped:
            return ""
        rest = self._stops.feed(self._detokenizer.finish()) + self._stops.finish()
        self._shown.append(rest)
        return rest


def complete(
    pair: Pair,
    text: TextModel,
    request: Request,
    *,
    speculative: bool = True,
    show: Callable[[str], None] = lambda piece: None,
) -> Completion:
    """Runs the request; `show` gets the text of each cycle as it is accepted, at most once per cycle."""
    output = CompletionText(text, request)
    start = time.perf_counter()
    stream = request.stream(pair, speculative=speculative)
    seconds: list[float] = []
    for tokens, end in _timed(iter(stream)):
        seconds.append(end - start)
        if piece := output.feed(tokens):
            show(piece)
        if output.stopped:
            break
        start = time.perf_counter()
    if rest := output.finish():
        show(rest)
    result = stream.result()
    logprobs = result.logprobs[0]
    return Completion(
        text=output.text,
        token_ids=output.token_ids,
        finish_reason="stop" if output.stopped else result.finish_reason[0],
        stats=result.stats,
        timing=Timing(seconds[0], sum(seconds[1:]), len(output.token_ids) - 1),
        seed=result.seeds[0],
        logprobs=logprobs if logprobs is None else logprobs.first(len(output.token_ids)),
    )


def warm_up(pair: Pair, request: Request, *, speculative: bool) -> None:
    """Compiles every program that the request will run, by its prompt and its first cycles."""
    for cycle, _ in enumerate(request.stream(pair, speculative=speculative)):
        if cycle == 2:
            return


def _timed(chunks: Iterator[np.ndarray]) -> Iterator[tuple[np.ndarray, float]]:
    """Each item with the time at which it came."""
    for chunk in chunks:
        yield chunk, time.perf_counter()
