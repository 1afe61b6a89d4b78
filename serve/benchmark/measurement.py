"""One whole run: every part in turn, on the same pair and the same prompts."""

import argparse
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from dspine_jax.measure import measure_widths
from dspine_jax.pair import Pair
from dspine_jax.request import Batch
from dspine_jax.sampling.width import Method, Verification, WidthCosts, check_width
from serve.benchmark import acceptance, cancellation, roof, speed, stages
from serve.benchmark.forced import Forced
from serve.benchmark.options import ONE_DISPATCH
from serve.benchmark.subject import Subject
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
        method: Method = "token" if arguments.verification is None else arguments.verification[0]
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

    def ways(self, size: int) -> tuple[Way, Way]:
        """Speculative and plain."""
        return self.speculative(size), self.plain

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
    found: dict[str, Any] = {name: [] for name in ("warm_up", "acceptance", "speed", "stages", "cancellation")}
    ways: dict[int, tuple[Way, Way]] = {}
    at_once = ONE_DISPATCH in parts
    for size in bench.concurrency:
        ways[size] = bench.ways(size)
        if set(parts) != {"acceptance"}:  # acceptance alone times nothing
            tell(f"warm-up at concurrency {size}")
            found["warm_up"] += [
                as_json(speed.warm_up(way, bench.batches(size)[0], one_dispatch=at_once)) for way in ways[size]
            ]
    if "acceptance" in parts:
        found["acceptance"] = [as_json(row) for row in measure_acceptance(bench, *ways[max(ways)], ablations, tell)]
    for size in bench.concurrency:
        ours, plain = ways[size]
        groups = bench.batches(size)
        if "speed" in parts or at_once:
            tell(f"speed at concurrency {size}")
            found["speed"].append(
                as_json(speed.measure([ours, plain], groups, repeats=bench.repeats, one_dispatch=at_once))
            )
        if size not in (min(bench.concurrency), max(bench.concurrency)):
            continue
        if "stages" in parts:
            tell(f"stages at concurrency {size}")
            found["stages"].append(as_json(stages.measure(ours, plain, groups[0], calls=4 * bench.repeats)))
        if "cancellation" in parts:
            tell(f"cancellation at concurrency {size}")
            for way in (ours, plain):
                one = cancellation.measure(way, groups[0], times=4 * bench.repeats)
                found["cancellation"].append(as_json(one))
    return found | {"roof": _roof(bench, found["speed"], ceiling)}


def measure_acceptance(
    bench: Bench, ours: Way, plain: Way, ablations: Sequence[str], tell: Tell
) -> list[acceptance.Acceptance]:
    """The whole drafter and each ablation on all prompts, greedy ones compared with plain decoding."""
    size = max(bench.concurrency)
    batches = bench.batches(size, everything=True)
    expected = None
    if not bench.forced and not bench.workload.sampling.sampled:
        tell("plain decoding of every prompt")
        expected = [plain.collect(batch, plain.finish(plain.start(batch))) for batch in batches]
    rows = []
    for name in ("full", *ablations):
        label = name if name == "full" else f"{name} off"
        tell(f"acceptance: {label}")
        way = ours
        if name != "full":
            way = dataclasses.replace(ours, pair=acceptance.ablated(bench.pair, name))
        rows.append(acceptance.compare_ways(label, way, ours, batches, expected, forced=bench.forced))
    return rows


def _roof(bench: Bench, speeds: Sequence[dict[str, Any]], ceiling: roof.Roof | str) -> dict[str, Any]:
    if isinstance(ceiling, str):
        return {"bytes_per_second": None, "source": None, "omitted": ceiling, "achieved": []}
    # The mean of a request over its run.
    context = len(bench.workload.prompts[0]) + bench.workload.max_new_tokens // 2
    reached = [
        roof.achieved(
            ceiling,
            bench.pair,
            way=name,
            concurrency=speed["concurrency"],
            context=context,
            seconds=way["figures"]["step_seconds"]["median"],
        )
        for speed in speeds
        for name, way in speed["ways"].items()
    ]
    return as_json(ceiling) | {"omitted": None, "achieved": [as_json(one) for one in reached]}


def as_json(row: Any) -> dict[str, Any]:
    """A dataclass as an object."""
    return dataclasses.asdict(row)
