"""How many proposals the target agreed with, in numbers that cannot be mistaken for each other."""

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np

from dspine_jax.generate import Generation, Stats
from dspine_jax.pair import Pair
from dspine_jax.request import Batch
from serve.benchmark.ways import Way

# The drafter's two mechanisms, and what switches each off.
ABLATIONS = {
    "bridge": {"bridge": False},
    "tail": {"tail": "off"},
    "both": {"bridge": False, "tail": "off"},
}


@dataclasses.dataclass(frozen=True)
class Acceptance:
    """One way of drafting over all prompts. The first token of a request is in no cycle and counts nowhere here."""

    name: str
    forced: bool  # the numbers were given, not found
    cycles: int
    tokens: int  # emitted by the cycles
    tokens_per_cycle: float | None  # tokens / cycles: the target's own token counts once; None without a cycle
    drafted: int  # proposals that were verified
    accepted: int  # those that the target agreed with, also behind the place where a request ended
    histogram: tuple[int, ...]  # cycles by accepted proposals, 0 .. block - 1
    by_position: tuple[float, ...]  # share of the cycles that accepted at least 1, 2, ... proposals
    same_tokens: bool | None = None  # as plain decoding, for every prompt; None where that is not to be expected

    @classmethod
    def of(
        cls, name: str, runs: Iterable[Stats], *, forced: bool = False, same_tokens: bool | None = None
    ) -> "Acceptance":
        """All requests of all runs pooled by cycle."""
        runs = list(runs)
        histogram = sum((run.histogram for run in runs), np.zeros(runs[0].block_size, np.int64))
        cycles = sum(sum(run.cycles) for run in runs)
        tokens = sum(sum(run.emitted) - len(run.emitted) for run in runs)
        at_least = np.cumsum(histogram[::-1])[::-1]
        return cls(
            name=name,
            forced=forced,
            cycles=cycles,
            tokens=tokens,
            tokens_per_cycle=tokens / cycles if cycles else None,
            drafted=sum(sum(run.target_rows) for run in runs) - cycles,
            accepted=int(np.arange(len(histogram)) @ histogram),
            histogram=tuple(int(count) for count in histogram),
            by_position=tuple(float(count) / max(cycles, 1) for count in at_least[1:]),
            same_tokens=same_tokens,
        )


def ablated(pair: Pair, what: str) -> Pair:
    """The same weights with a part of the drafter switched off."""
    return pair.with_options(dataclasses.replace(pair.plan.options, **ABLATIONS[what]))


def compare_ways(
    name: str, way: Way, reader: Way, batches: Sequence[Batch], plain: Sequence[Generation] | None, *, forced: bool
) -> Acceptance:
    """Acceptance over all batches, and whether the tokens are plain decoding's (`plain` None: not to be expected).

    `reader` reads the prompts, which is the same program whatever drafts afterwards.
    """
    found = [way.collect(batch, way.finish(reader.start(batch))) for batch in batches]
    same = None
    if plain is not None:
        pairs = [(a, b) for x, y in zip(found, plain, strict=True) for a, b in zip(x.tokens, y.tokens, strict=True)]
        same = all(np.array_equal(a, b) for a, b in pairs)
    return Acceptance.of(name, [one.stats for one in found], forced=forced, same_tokens=same)
