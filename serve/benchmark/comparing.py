"""`dspine bench compare`: two reports side by side, if they measured the same thing under the same conditions."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dspine_jax.errors import WeightsError
from dspine_jax.json_file import read_json
from serve.benchmark.report import FORMAT, FORMAT_VERSION
from serve.benchmark.tables import Report

# What must be equal for a difference of the figures to mean anything.
SAME = {
    "target": ("model", "target_hash"),
    "weights": ("model", "weights"),
    "dtype": ("model", "dtype"),
    "block size": ("model", "block_size"),
    "platform": ("device", "platform"),
    "device": ("device", "kind"),
    "host CPU": ("device", "host_cpu"),
    "host cores": ("device", "host_cores"),
    "prompts": ("settings", "prompt_hash"),
    "new tokens": ("settings", "max_new_tokens"),
    "sampling": ("settings", "sampling"),
    "thinking mode": ("settings", "thinking_mode"),
    "chat template": ("settings", "chat_template"),
    "prefill": ("settings", "prefill"),
    "forced acceptance": ("settings", "forced_acceptance"),
    "timed prompts": ("settings", "timed_prompts"),
}

# What two runs are compared for, so that it may differ, and is told.
TOLD = {
    "model": ("model", "name"),
    "drafter": ("model", "draft_hash"),
    "drafting": ("model", "draft_options"),
    "verification": ("settings", "verification"),
    "verify width": ("settings", "verify_width"),
    "repeats": ("settings", "repeats"),
    "matmul precision": ("settings", "matmul_precision"),
    "commit": ("commit",),
    "versions": ("versions",),
    "date": ("date",),
}

FIGURES = ("tokens_per_second", "first_token_seconds", "token_seconds", "token_seconds_p95", "step_seconds")


class ReportError(ValueError):
    """A file that is no report, or two reports that cannot be compared; one reason per line."""


def main(argv: Sequence[str]) -> int:
    """Runs `dspine bench compare`: 0 compared, 1 a file cannot be read, 2 not comparable or wrong usage."""
    parser = argparse.ArgumentParser(prog="dspine bench compare", description=__doc__)
    parser.add_argument("a", type=Path, metavar="A.json", help="report of `dspine bench --json A.json`")
    parser.add_argument("b", type=Path, metavar="B.json", help="the other; ratios are B over A")
    arguments = parser.parse_args(argv)
    try:
        a, b = read(arguments.a), read(arguments.b)
    except (WeightsError, ReportError, OSError) as error:
        print(f"dspine bench compare: error: {error}", file=sys.stderr)
        return 1
    if reasons := list(differences(a, b)):
        print("dspine bench compare: the runs are not comparable:", file=sys.stderr)
        for reason in reasons:
            print(f"  - {reason}", file=sys.stderr)
        return 2
    print("\n".join(compare(a, b)))
    return 0


def read(path: Path) -> Report:
    """A report of this version. Raises ReportError for anything else."""
    content = read_json(path)
    if content.get("format") != FORMAT:
        raise ReportError(f"{path} is no report of `dspine bench --json`")
    if content.get("format_version") != FORMAT_VERSION:
        raise ReportError(
            f"{path}: format_version is {content.get('format_version')!r}, this program compares {FORMAT_VERSION}"
        )
    return content


def differences(a: Report, b: Report) -> Iterator[str]:
    """Every reason why the two cannot be compared."""
    for name, path in SAME.items():
        x, y = _at(a, path), _at(b, path)
        if x != y:
            yield f"{name}: {_short(x)} and {_short(y)}"
    if not set(_by_size(a)) & set(_by_size(b)) and (a["speed"] or b["speed"]):
        yield f"concurrency: {sorted(_by_size(a))} and {sorted(_by_size(b))} have none in common"


def compare(a: Report, b: Report) -> Iterator[str]:
    """Lines: what differs, acceptance, and ratios with the range that the spreads of both allow."""
    told = [(name, _at(a, path), _at(b, path)) for name, path in TOLD.items()]
    for name, x, y in told:
        if x != y:
            yield f"{name}: A {_short(x)}, B {_short(y)}"
    mark = "FORCED " if a["settings"]["forced_acceptance"] else ""
    theirs = {row["name"]: row for row in b["acceptance"]}
    for row in a["acceptance"]:
        if other := theirs.get(row["name"]):
            lengths = " to ".join(_length(one) for one in (row, other))
            yield f"{mark}tokens per cycle, {row['name']}: {lengths}"
    yield ""
    yield f"{mark}B over A: ratio of the medians (lowest B over highest A to highest B over lowest A)"
    sizes = _by_size(b)
    for size, speed in _by_size(a).items():
        if size not in sizes:
            continue
        for way, mine in speed["ways"].items():
            other = sizes[size]["ways"][way]
            for figure in FIGURES:
                yield _line(size, way, figure, mine["figures"][figure], other["figures"][figure])
            if mine["one_dispatch"] and other["one_dispatch"]:
                yield _line(size, way, "tokens_per_second, one dispatch", mine["one_dispatch"], other["one_dispatch"])


def _line(size: int, way: str, figure: str, a: dict[str, float], b: dict[str, float]) -> str:
    ratio, low, high = b["median"] / a["median"], b["low"] / a["high"], b["high"] / a["low"]
    return f"{size:>4}  {way:<12}{figure:<33}{ratio:6.3f} ({low:.3f} to {high:.3f})"


def _by_size(report: Report) -> dict[int, Any]:
    return {speed["concurrency"]: speed for speed in report["speed"]}


def _at(report: Report, path: Sequence[str]) -> Any:
    value: Any = report
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _short(value: Any) -> str:
    shown = "none" if value is None else str(value)
    return shown if len(shown) <= 200 else f"{shown[:197]}..."


def _length(row: dict[str, Any]) -> str:
    return "none" if row["tokens_per_cycle"] is None else f"{row['tokens_per_cycle']:.3f}"
