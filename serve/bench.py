"""Acceptance and speed of a pair on a set of prompts, each number beside the check that the output did not change."""

import dataclasses
import hashlib
import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np

from dspine_jax.drafter.propose import DraftOptions
from dspine_jax.generate import Generation, generate, generate_plain
from dspine_jax.pair import Pair
from dspine_jax.request import Prompt

# What each part of the drafter is worth: the same weights with parts left out.
ABLATIONS = {
    "full": {},
    "tail off": {"tail": "off"},
    "tail and bridge off": {"tail": "off", "bridge": False},
}


@dataclasses.dataclass(frozen=True)
class Acceptance:
    """One way of drafting over all prompts."""

    name: str
    acceptance_length: float
    histogram: tuple[int, ...]
    same_tokens: bool  # as plain decoding, for every prompt


@dataclasses.dataclass(frozen=True)
class Speed:
    """Tokens per second of one batch size, the first token and its prompt included."""

    batch: int
    speculative: float  # median over the repeats
    plain: float
    ratios: tuple[float, ...]  # speculative over plain, of each repeat, run one right after the other


def measure_acceptance(
    pair: Pair, prompts: Sequence[Prompt], plain: Generation, *, max_new_tokens: int
) -> list[Acceptance]:
    """Every ablation on all prompts at once, compared with the plain run."""
    rows = []
    for name, change in ABLATIONS.items():
        options = DraftOptions(**({"retrieval": pair.plan.options.retrieval} | change))
        result = generate(pair.with_options(options), prompts, max_new_tokens=max_new_tokens)
        rows.append(
            Acceptance(
                name=name,
                acceptance_length=result.stats.acceptance_length,
                histogram=tuple(int(n) for n in result.stats.histogram),
                same_tokens=all(np.array_equal(a, b) for a, b in zip(result.tokens, plain.tokens, strict=True)),
            )
        )
    return rows


def measure_speed(pair: Pair, prompts: Sequence[Prompt], *, batch: int, max_new_tokens: int, repeats: int) -> Speed:
    """Speculative and plain decoding in turn on the first `batch` prompts, after a warm-up of both."""
    chosen = prompts[:batch]
    rates: dict[Callable[..., Generation], list[float]] = {generate: [], generate_plain: []}
    for repeat in range(repeats + 1):
        for run, seen in rates.items():
            start = time.perf_counter()
            result = run(pair, chosen, max_new_tokens=max_new_tokens, stop_token_ids=())
            seconds = time.perf_counter() - start
            if repeat:
                seen.append(sum(map(len, result.tokens)) / seconds)
    speculative, plain = rates[generate], rates[generate_plain]
    return Speed(
        batch=batch,
        speculative=statistics.median(speculative),
        plain=statistics.median(plain),
        ratios=tuple(a / b for a, b in zip(speculative, plain, strict=True)),
    )


def prompt_hash(prompts: Sequence[Prompt]) -> str:
    """Names the exact set of prompts: two runs are comparable only if theirs are equal."""
    digest = hashlib.sha256()
    for prompt in prompts:
        digest.update(len(prompt).to_bytes(4, "little") + np.asarray(prompt, np.int32).tobytes())
    return digest.hexdigest()[:16]
