"""Acceptance of sampled requests by temperature, verify width and verification: one row for each."""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

from dspine_jax.generate import Stats, generate
from dspine_jax.measure import measure_widths
from dspine_jax.pair import Pair
from dspine_jax.request import Prompt
from dspine_jax.sampling import SamplingParams
from dspine_jax.sampling.width import Method, Width, check_width


@dataclasses.dataclass(frozen=True)
class SampledAcceptance:
    """One combination over all prompts, each drawn `samples` times with seeds of its own."""

    temperature: float
    verification: Method
    verify_width: Width
    acceptance_length: float
    rows_per_cycle: float
    cycles: int


def measure_sampled(
    pair: Pair,
    prompts: Sequence[Prompt],
    *,
    temperatures: Sequence[float],
    widths: Sequence[Width],
    methods: Sequence[Method],
    samples: int,
    max_new_tokens: int,
) -> list[SampledAcceptance]:
    """Every combination on the same prompts and seeds. What greedy requests accept is the same for every method."""
    context = max(map(len, prompts)) + max_new_tokens
    rows = []
    for width, method, temperature in itertools.product(widths, methods, temperatures):
        if temperature == 0 and method != methods[0]:
            continue
        costs = None
        if width == "auto":
            costs = measure_widths(pair, context=context, temperature=temperature, verification=method)
        requests = [prompt for prompt in prompts for _ in range(samples if temperature else 1)]
        params = [SamplingParams(temperature=temperature, seed=seed) for seed in range(len(requests))]
        # The width is chosen for a whole pass, so there each request runs by itself.
        size = 1 if width == "auto" else len(requests)
        runs = [
            generate(
                pair,
                requests[first : first + size],
                max_new_tokens=max_new_tokens,
                stop_token_ids=(),
                sampling=params[first : first + size],
                verification=method,
                verify_width=width,
                width_costs=costs,
            ).stats
            for first in range(0, len(requests), size)
        ]
        rows.append(_row(temperature, method, width, runs))
    return rows


def _row(temperature: float, method: Method, width: Width, runs: Sequence[Stats]) -> SampledAcceptance:
    cycles = sum(sum(run.cycles) for run in runs)
    # The first token of a request is in no cycle.
    tokens = sum(sum(run.emitted) - len(run.emitted) for run in runs)
    return SampledAcceptance(
        temperature=temperature,
        verification=method,
        verify_width=width,
        acceptance_length=tokens / cycles if cycles else math.nan,
        rows_per_cycle=sum(sum(run.target_rows) for run in runs) / cycles if cycles else math.nan,
        cycles=cycles,
    )


def check(pair: Pair, widths: Sequence[Width], temperatures: Sequence[float]) -> None:
    """Raises ValueError for a width or a temperature that cannot be measured."""
    for width in widths:
        if isinstance(width, int):
            check_width(width, pair.drafter_config.block_size)
    for temperature in temperatures:
        SamplingParams(temperature=temperature)


def table(rows: Sequence[SampledAcceptance]) -> list[str]:
    """Markdown: tokens per cycle, one line per width and method, one column per temperature."""
    temperatures = list(dict.fromkeys(row.temperature for row in rows))
    header = ["rows", "verification", *[f"T = {t:g}" for t in temperatures]]
    lines = [header, ["---"] * len(header)]
    for width, method in dict.fromkeys((row.verify_width, row.verification) for row in rows):
        found = {r.temperature: r for r in rows if (r.verify_width, r.verification) == (width, method)}
        lines.append([str(width), method, *[_cell(found.get(t)) for t in temperatures]])
    return ["| " + " | ".join(cells) + " |" for cells in lines]


def as_json(rows: Sequence[SampledAcceptance]) -> list[dict[str, Any]]:
    """The same as objects."""
    return [dataclasses.asdict(row) for row in rows]


def _cell(row: SampledAcceptance | None) -> str:
    if row is None:
        return "-"
    return f"{row.acceptance_length:.2f}" + (f" ({row.rows_per_cycle:.1f} rows)" if row.verify_width == "auto" else "")
