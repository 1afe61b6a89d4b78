"""One whole run: every part in turn, on the same pair and the same prompts."""

import argparse
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from dspine_jax.measure import measure_widths
from dspine_jax.pair import Pair
from dspine_jax.request import Batch
from dspine_jax.sampling.width import Verification, WidthCosts, check_width
from serve.benchmark import acceptance, cancellation, roof, speed, stages
from serve.benchmark.forced import Forced
from serve.benchmark.subject import Subject
from serve.benchmark.timeline import Spread
from serve.benchmark.ways import Way
from serve.benchmark.workload import Workload

Tell = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class Bench:
    """What is measured and how."""

    subject: Subject
    workload: Workload
    verification: Verification
    auto_width: bool  # the cycles choose their width, by costs measured at each concurrency
    read_all: bool
    concurrency: tuple[int, ...]
    repeats: int

    @property
    def pair(self) -> Pair:
        return self.subject.pair

    @property
    def forced(self) -> bool:
        return isinstance(self.verification, Forced)

    @classmethod
    def of(cls, subject: Subject, workload: Workload, arguments: argparse.Namespace, shares: Any) -> "Bench":
        """From the command's arguments; `shares` are those of forced acceptance or None. Raises ValueError."""
        block = subject.pair.drafter_config.block_size
        rows = arguments.verify_width
        fixed = () if rows in (None, "auto") or check_width(rows, block) == block else (rows,)
        method = (arguments.verification or ["token"])[0]
        how = Verification(method, fixed)
        if shares is not None:
            how = Forced(method, fixed, shares=shares, seed=arguments.seed or 0)
        return cls(
            subject=subject,
            workload=workload,
            verification=how,
            auto_width=rows == "auto",
            read_all=not arguments.skip_prefill,
            concurrency=tuple(sorted(set(arguments.concurrency))),
            repeats=arguments.repeats,
        )

    def batches(self, size: int, *, everything: bool = False) -> list[Batch]:
        """The timed prompts, as many as the greatest concurrency, or all, in groups."""
        count = None if everything else max(self.concurrency)
        return self.workload.batches(self.pair.target_config, size, count=count)

    def speculative(self, size: int) -> Way:
        """Speculative decoding of `size` requests at a time."""
        how, costs = self.verification, self._costs(size) if self.auto_width else None
        if costs is not None:
            how = dataclasses.replace(how, widths=costs.widths)
        return Way(self.pair, "speculative", how, costs, read_all=self.read_all)

    @property
    def plain(self) -> Way:
        """Plain decoding."""
        return Way(self.pair, "plain", read_all=self.read_all)

    def _costs(self, size: int) -> WidthCosts:
        return measure_widths(
            self.pair,
            batch=size,
            context=len(self.workload.prompts[0]) + self.workload.max_new_tokens,
            temperature=self.workload.sampling.temperature,
            verification=self.verification.method,
        )


def measure(bench: Bench, parts: Sequence[str], ablations: Sequence[str], ceiling: roof.Roof | str, tell: Tell) -> dict:
    """The measured sections of a report, as JSON has them; `tell` hears of each part before it begins."""
    found: dict[str, Any] = {name: [] for name in ("acceptance", "speed", "stages", "cancellation")}
    if "acceptance" in parts:
        found["acceptance"] = [as_json(row) for row in measure_acceptance(bench, ablations, tell)]
    for size in bench.concurrency:
        # What the parts at one concurrency share: their costs are measured once.
        ours = bench.speculative(size)
        groups = bench.batches(size)
        if "speed" in parts:
            tell(f"speed at concurrency {size}")
            found["speed"].append(as_json(speed.measure([ours, bench.plain], groups, repeats=bench.repeats)))
        if size not in (min(bench.concurrency), max(bench.concurrency)):
            continue
        if "stages" in parts:
            tell(f"stages at concurrency {size}")
            found["stages"].append(as_json(stages.measure(ours, bench.plain, groups[0], calls=4 * bench.repeats)))
        if "cancellation" in parts:
            tell(f"cancellation at concurrency {size}")
            for way in (ours, bench.plain):
                one = cancellation.measure(way, groups[0], times=4 * bench.repeats)
                found["cancellation"].append(as_json(one))
    return found | {"roof": _roof(bench, found["speed"], ceiling)}


def measure_acceptance(bench: Bench, ablations: Sequence[str], tell: Tell) -> list[acceptance.Acceptance]:
    """The whole drafter and each ablation on all prompts, greedy ones compared with plain decoding."""
    size = max(bench.concurrency)
    batches = bench.batches(size, everything=True)
    ours = bench.speculative(size)
    plain = None
    if not bench.forced and not bench.workload.sampling.sampled:
        tell("plain decoding of every prompt")
        plain = [bench.plain.collect(batch, bench.plain.run(bench.plain.start(batch))) for batch in batches]
    rows = []
    for name in ("full", *ablations):
        label = name if name == "full" else f"{name} off"
        tell(f"acceptance: {label}")
        way = ours
        if name != "full":
            way = dataclasses.replace(ours, pair=acceptance.ablated(bench.pair, name))
        rows.append(acceptance.compare_ways(label, way, batches, plain, forced=bench.forced))
    return rows


def _roof(bench: Bench, speeds: Sequence[dict[str, Any]], ceiling: roof.Roof | str) -> dict[str, Any]:
    if isinstance(ceiling, str):
        return {"bytes_per_second": None, "source": None, "omitted": ceiling, "achieved": []}
    # The mean of a request over its run.
    context = len(bench.workload.prompts[0]) + bench.workload.max_new_tokens // 2
    widths = bench.verification.widths
    rows = widths[0] if widths else bench.pair.drafter_config.block_size
    reached = [
        roof.achieved(
            ceiling,
            bench.pair,
            name,
            bench.batches(speed["concurrency"])[0],
            context,
            rows,
            way["figures"]["step_seconds"]["median"],
        )
        for speed in speeds
        for name, way in speed["ways"].items()
    ]
    return as_json(ceiling) | {"omitted": None, "achieved": [as_json(one) for one in reached]}


def as_json(row: Any) -> dict[str, Any]:
    """A dataclass as an object."""
    return dataclasses.asdict(row)


def spread(value: dict[str, float]) -> Spread:
    """A spread as it was before it became JSON."""
    return Spread(**value)
