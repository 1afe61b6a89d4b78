"""A report as pictures. matplotlib is the optional extra `plot`."""

import importlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from serve.benchmark.tables import forced, where

Report = dict[str, Any]


def check() -> None:
    """Raises OSError when matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise OSError("--plots needs matplotlib; install it with: pip install 'dspine-jax[plot]'")


def write(report: Report, folder: Path) -> Iterator[Path]:
    """Draws what was measured; yields each file as it is written."""
    folder.mkdir(parents=True, exist_ok=True)
    drawings = {"speed": throughput, "stages": stages, "acceptance": acceptance}
    names = {"speed": "throughput.png", "stages": "stages.png", "acceptance": "acceptance.png"}
    for part, draw in drawings.items():
        if not report[part]:
            continue
        figure, axes = _figure()
        draw(report, axes)
        axes.set_title(f"{forced(report)}{axes.get_title()}\n{report['model']['name']} on {where(report['device'])}")
        axes.grid(alpha=0.3)
        axes.legend()
        path = folder / names[part]
        figure.savefig(path, format="png", dpi=150)
        yield path


def throughput(report: Report, axes: Any) -> None:
    """Tokens per second against concurrency, with the spread over the repeats."""
    sizes = [speed["concurrency"] for speed in report["speed"]]
    for name in report["speed"][0]["ways"]:
        rates = [speed["ways"][name]["figures"]["tokens_per_second"] for speed in report["speed"]]
        middle = [rate["median"] for rate in rates]
        below = [rate["median"] - rate["low"] for rate in rates]
        above = [rate["high"] - rate["median"] for rate in rates]
        axes.errorbar(sizes, middle, yerr=[below, above], marker="o", capsize=3, label=name)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel("requests at a time")
    axes.set_ylabel("tokens per second")
    axes.set_title("throughput")


def stages(report: Report, axes: Any) -> None:
    """Stages beside each other, whole cycle and plain step last."""
    names = [*report["stages"][0]["stages"], "whole cycle", "plain step"]
    width = 0.8 / len(report["stages"])
    for index, one in enumerate(report["stages"]):
        times = [*one["stages"].values(), one["cycle"], one["plain_step"]]
        places = [place + index * width for place in range(len(names))]
        label = f"{one['concurrency']} at a time"
        axes.bar(places, [1e3 * t["median"] for t in times], width=width, label=label)
    middle = width * (len(report["stages"]) - 1) / 2
    axes.set_xticks([place + middle for place in range(len(names))], names)
    axes.set_ylabel("milliseconds, each timed alone")
    axes.set_title("stages of a cycle (they do not add up)")


def acceptance(report: Report, axes: Any) -> None:
    """Share of the cycles by accepted proposals."""
    rows = report["acceptance"]
    width = 0.8 / len(rows)
    for index, row in enumerate(rows):
        places = [place + (index - (len(rows) - 1) / 2) * width for place in range(len(row["histogram"]))]
        shares = [count / max(row["cycles"], 1) for count in row["histogram"]]
        mean = "" if row["tokens_per_cycle"] is None else f": {row['tokens_per_cycle']:.2f} tokens per cycle"
        axes.bar(places, shares, width=width, label=f"{row['name']}{' (FORCED)' if row['forced'] else ''}{mean}")
    axes.set_xticks(range(len(rows[0]["histogram"])))
    axes.set_xlabel("accepted proposals")
    axes.set_ylabel("share of the cycles")
    axes.set_title("acceptance")


def _figure() -> tuple[Any, Any]:
    # By name: an installation without the extra has no such modules.
    canvas = importlib.import_module("matplotlib.backends.backend_agg")
    figures = importlib.import_module("matplotlib.figure")
    figure = figures.Figure(figsize=(7, 4.5), layout="constrained")
    canvas.FigureCanvasAgg(figure)
    return figure, figure.add_subplot()
