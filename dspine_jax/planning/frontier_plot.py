"""The frontier of slots and context as a picture."""

import importlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path


def available() -> bool:
    """Whether matplotlib, the extra `plot`, is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def draw(frontier: Sequence[tuple[int, int | None]], title: str, path: Path) -> None:
    """Writes a PNG: the largest context that fits against the number of slots, both by powers of two."""
    # By name: an installation without the extra has no such modules.
    canvas = importlib.import_module("matplotlib.backends.backend_agg")
    figures = importlib.import_module("matplotlib.figure")

    fitting = [(count, context) for count, context in frontier if context is not None]
    counts, contexts = [count for count, _ in fitting], [context for _, context in fitting]
    figure = figures.Figure(figsize=(7, 4.5), layout="constrained")
    canvas.FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    # A number of slots in between is rounded up.
    axes.plot(counts, contexts, marker="o", drawstyle="steps-pre")
    axes.fill_between(counts, contexts, step="pre", alpha=0.15)
    every = [count for count, _ in frontier]
    axes.set_xticks(every, [str(count) for count in every])
    # The model's own limit lies a block above the context that fills its pages: one label for both.
    labelled = [context for context in contexts if not any(context < other < 1.1 * context for other in contexts)]
    axes.set_yticks(labelled, [f"{context:,}" for context in labelled])
    axes.minorticks_off()
    axes.set_xlabel("slots")
    axes.set_ylabel("largest context that fits (tokens)")
    axes.set_title(title)
    axes.grid(alpha=0.3)
    figure.savefig(path, format="png", dpi=150)
