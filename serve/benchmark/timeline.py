"""From the times at which tokens arrived to the figures of a table. No model, no clock: arithmetic only."""

import dataclasses
import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Self

import numpy as np


@dataclasses.dataclass(frozen=True)
class Spread:
    """What several measurements of one thing gave."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """Raises ValueError when there is none."""
        if not values:
            raise ValueError("nothing was measured: wanted at least one value")
        return cls(median=statistics.median(values), low=min(values), high=max(values))


@dataclasses.dataclass(frozen=True)
class Timeline:
    """One group of requests that started together, from the request to the last token.

    An event is what the host saw at once: the first tokens, then the result of each cycle or step.
    """

    times: np.ndarray  # [E] seconds since the requests
    emitted: np.ndarray  # [E, B] tokens of each request so far

    def __post_init__(self) -> None:
        if self.emitted.ndim != 2 or len(self.times) != len(self.emitted) or len(self.times) == 0:
            raise ValueError(f"got {len(self.times)} times and counts {self.emitted.shape}, wanted [E] and [E, B]")
        if np.any(np.diff(self.times) < 0) or np.any(np.diff(self.emitted, axis=0) < 0):
            raise ValueError("neither time nor a count of tokens runs backwards")

    @property
    def tokens(self) -> int:
        """All tokens of all requests."""
        return int(self.emitted[-1].sum())

    @property
    def seconds(self) -> float:
        """From the requests to the last token."""
        return float(self.times[-1])

    @property
    def decoded(self) -> tuple[int, float]:
        """Tokens after the first event, and the seconds since it."""
        return self.tokens - int(self.emitted[0].sum()), float(self.times[-1] - self.times[0])

    @property
    def first_tokens(self) -> list[float]:
        """Seconds to the first token of each request that got one."""
        arrived = self.emitted > 0
        return [float(self.times[np.argmax(column)]) for column in arrived.T if column.any()]

    def arrivals(self) -> Iterator[tuple[float, int]]:
        """Of each request's arrivals after its first: seconds since the one before, and how many tokens came."""
        for column in self.emitted.T:
            new = np.diff(column, prepend=0)
            events = np.flatnonzero(new)
            for before, event in itertools.pairwise(events):
                yield float(self.times[event] - self.times[before]), int(new[event])

    @property
    def full_steps(self) -> list[float]:
        """Seconds of each cycle or step in which every request still got tokens."""
        busy = (np.diff(self.emitted, axis=0) > 0).all(axis=1)
        return np.diff(self.times)[busy].tolist()


@dataclasses.dataclass(frozen=True)
class Figures:
    """One pass over all requests."""

    tokens_per_second: float  # every token counts, the first ones and the time of their prompts included
    decode_tokens_per_second: float  # after the first tokens
    first_token_seconds: float  # median over the requests
    token_seconds: float  # median over tokens; those that arrive together share the time since the arrival before
    token_seconds_p95: float
    arrival_seconds: float  # median over arrivals: what a reader waits between two pieces of text
    arrival_seconds_p95: float
    step_seconds: float  # median of a cycle, or a step, with all requests busy


FIGURES = tuple(field.name for field in dataclasses.fields(Figures))


def figures(groups: Sequence[Timeline]) -> Figures:
    """The figures of groups that ran one after the other. Raises ValueError when a group emitted nothing more."""
    arrivals = [arrival for group in groups for arrival in group.arrivals()]
    if not arrivals:
        raise ValueError("no request got a token after its first: wanted at least 2 new tokens")
    each_token = [gap / count for gap, count in arrivals for _ in range(count)]
    gaps = [gap for gap, _ in arrivals]
    decoded = [group.decoded for group in groups]
    return Figures(
        tokens_per_second=sum(group.tokens for group in groups) / sum(group.seconds for group in groups),
        decode_tokens_per_second=sum(count for count, _ in decoded) / sum(seconds for _, seconds in decoded),
        first_token_seconds=statistics.median(second for group in groups for second in group.first_tokens),
        token_seconds=statistics.median(each_token),
        token_seconds_p95=percentile(each_token, 95),
        arrival_seconds=statistics.median(gaps),
        arrival_seconds_p95=percentile(gaps, 95),
        step_seconds=statistics.median(step for group in groups for step in group.full_steps),
    )


def over_repeats(repeats: Sequence[Figures]) -> dict[str, Spread]:
    """Figure -> median, lowest and highest over the repeats."""
    return {name: Spread.of([getattr(repeat, name) for repeat in repeats]) for name in FIGURES}


def ratios(a: Sequence[Figures], b: Sequence[Figures], figure: Callable[[Figures], float]) -> Spread:
    """a over b, repeat by repeat: the two of one repeat ran one right after the other."""
    return Spread.of([figure(x) / figure(y) for x, y in zip(a, b, strict=True)])


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` of all do not exceed: one that was really measured."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]
