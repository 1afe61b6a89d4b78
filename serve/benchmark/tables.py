"""A report as tables, for a terminal or in Markdown."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

Report = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Table:
    """Cells are text; the first row names the columns."""

    title: str
    rows: list[list[str]]
    notes: tuple[str, ...] = ()


def text(report: Report) -> Iterator[str]:
    """Lines for a terminal."""
    yield from _conditions(report)
    for table in tables(report):
        yield ""
        yield f"{forced(report)}{table.title}"
        widths = [max(len(row[column]) for row in table.rows) for column in range(len(table.rows[0]))]
        for row in table.rows:
            first, *rest = (
                cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
            )
            yield "  ".join((first, *rest)).rstrip()
        yield from table.notes
    yield ""
    yield from _totals(report)


def markdown(report: Report) -> Iterator[str]:
    """The same in Markdown."""
    yield from _conditions(report)
    for table in tables(report):
        yield from ("", f"**{forced(report)}{table.title}**", "")
        header, *rows = table.rows
        for row in (header, ["---"] + ["---:"] * (len(header) - 1), *rows):
            yield "| " + " | ".join(row) + " |"
        if table.notes:
            yield from ("", *table.notes)
    yield ""
    yield from _totals(report)


def tables(report: Report) -> Iterator[Table]:
    """Every part that was measured."""
    parts: dict[str, Callable[[Report], Iterator[Table]]] = {
        "acceptance": _acceptance,
        "speed": _speed,
        "stages": _stages,
        "cancellation": _cancellation,
        "warm_up": _warm_up,
    }
    for name, make in parts.items():
        if report[name]:
            yield from make(report)
    if report["roof"]["achieved"]:
        yield _roof(report)
    if report["peers"]:
        yield _peers(report)


def forced(report: Report) -> str:
    """What stands before every title of a report whose acceptance was given."""
    return "FORCED: " if report["settings"]["forced_acceptance"] else ""


def _conditions(report: Report) -> Iterator[str]:
    model, settings, device = report["model"], report["settings"], report["device"]
    yield (
        f"{model['name']}, {model['weights']} weights, {model['dtype']}, on {where(device)};"
        f" {report['date'][:10]}, commit {report['commit'] or 'unknown'}, jax {report['versions']['jax']}"
    )
    yield (
        f"{settings['prompts']} prompts of {settings['prompt_tokens']} tokens ({settings['prompt_hash']}:"
        f" {settings['prompt_source']}), {settings['max_new_tokens']} new tokens each,"
        f" {describe_sampling(settings)}, no chat template, thinking mode {settings['thinking_mode']}"
    )
    if settings["forced_acceptance"]:
        yield (
            f"FORCED ACCEPTANCE: {settings['forced_acceptance']['tokens_per_cycle']:.2f} tokens per cycle were asked"
            " for. The text is not the model's; times are real, gains are not."
        )
    if not settings["prefill"].startswith("whole"):
        yield f"prompts: {settings['prefill']}; times to the first token mean nothing here"


def where(device: dict[str, Any]) -> str:
    """The device in words."""
    if device["platform"] == "cpu":
        return f"{device['host_cores']} cores of {device['host_cpu']}"
    return device["kind"]


def describe_sampling(settings: dict[str, Any]) -> str:
    """What is not default about the sampling."""
    sampling = settings["sampling"]
    if not sampling["temperature"]:
        return "greedy"
    said = {k: v for k, v in sampling.items() if v not in (None, (), [], {}, 0) and k != "repetition_penalty"}
    return f"sampled ({', '.join(f'{k} {v:g}' for k, v in said.items() if isinstance(v, int | float))})"


def _acceptance(report: Report) -> Iterator[Table]:
    rows = [["drafter", "tokens per cycle", "accepted / drafted", "cycles", "same tokens as plain"]]
    same = {True: "yes", False: "NO", None: "-"}
    for row in report["acceptance"]:
        mean = "-" if row["tokens_per_cycle"] is None else f"{row['tokens_per_cycle']:.2f}"
        share = f"{row['accepted']} / {row['drafted']}"
        rows.append([_forced_name(row), mean, share, str(row["cycles"]), same[row["same_tokens"]]])
    yield Table(
        "acceptance over all prompts",
        rows,
        ("tokens per cycle: with the target's own token; 1.00 means that no proposal was accepted",),
    )
    block = len(report["acceptance"][0]["histogram"])
    rows = [["accepted proposals", *map(str, range(block))]]
    for row in report["acceptance"]:
        rows.append([f"{_forced_name(row)}: cycles", *map(str, row["histogram"])])
        rows.append([f"{_forced_name(row)}: % at least", "", *(f"{100 * p:.0f}" for p in row["by_position"])])
    yield Table("cycles by accepted proposals, and by position", rows)


def _forced_name(row: dict[str, Any]) -> str:
    return f"{row['name']} (FORCED)" if row["forced"] else row["name"]


def _speed(report: Report) -> Iterator[Table]:
    rows = [["concurrency", "way", "tokens/s", "first token ms", "ms/token", "p95", "ms/arrival", "p95"]]
    ratio = [["concurrency", "tokens/s"]]
    at_once = [["concurrency", "speculative, tokens/s", "plain, tokens/s", "ratio"]]
    for speed in report["speed"]:
        size = str(speed["concurrency"])
        for name, way in speed["ways"].items():
            arrivals = (way["figures"][key] for key in ("arrival_seconds", "arrival_seconds_p95"))
            waits = (f"{1e3 * arrival['median']:.2f}" for arrival in arrivals)
            rows.append([size, name, *_latencies(way["figures"]), *waits])
        ratio.append([size, _spread(speed["ratio"], 1, ".2f")])
        if speed["ratio_one_dispatch"]:
            rates = (_spread(way["one_dispatch"], 1, ".1f") for way in speed["ways"].values())
            at_once.append([size, *rates, _spread(speed["ratio_one_dispatch"], 1, ".2f")])
    count, repeats = max(report["settings"]["concurrency"]), report["settings"]["repeats"]
    yield Table(
        f"speed of {count} prompts, a dispatch per cycle or token: median of {repeats} (lowest to highest)",
        rows,
        (
            "tokens/s: all tokens over all time, prompts included",
            "ms/token: tokens that arrive together share the time since the last; ms/arrival: what a reader waits",
        ),
    )
    yield Table("speculative over plain", ratio)
    if len(at_once) > 1:
        yield Table(
            "the same with all cycles or steps in one dispatch", at_once, ("nothing can stop it or look into it",)
        )


def _warm_up(report: Report) -> Iterator[Table]:
    rows = [["concurrency", "way", "seconds", "trace", "lower", "compile", "programs", "from disk"]]
    for one in report["warm_up"]:
        took = one["compiled"]
        seconds = (one["seconds"], *(took[f"{part}_seconds"] for part in ("trace", "lower", "compile")))
        counts = (took["programs"], took["programs_from_disk"])
        rows.append([str(one["concurrency"]), one["way"], *(f"{s:.2f}" for s in seconds), *map(str, counts)])
    yield Table("warm-up, before anything is measured", rows, ("a program kept on disk is read, not compiled",))


def _stages(report: Report) -> Iterator[Table]:
    names = list(report["stages"][0]["stages"])
    rows = [["concurrency", *names, "whole cycle", "plain step", "cycle / step"]]
    for one in report["stages"]:
        times = [*(one["stages"][name] for name in names), one["cycle"], one["plain_step"]]
        over = one["cycle"]["median"] / one["plain_step"]["median"]
        rows.append([str(one["concurrency"]), *(f"{1e3 * t['median']:.3f}" for t in times), f"{over:.2f}"])
    yield Table(
        "stages of a cycle, each compiled and timed alone: median ms",
        rows,
        ("a cycle is one program: its stages do not add up to it",),
    )


def _cancellation(report: Report) -> Iterator[Table]:
    rows = [["concurrency", "way", "ms until the device is free"]]
    for one in report["cancellation"]:
        rows.append([str(one["concurrency"]), one["way"], _spread(one["seconds"], 1e3, ".2f")])
    yield Table("cancellation: a request to stop is heard after the cycle that runs", rows)


def _roof(report: Report) -> Table:
    rows = [["concurrency", "way", "context", "MB per pass", "ms", "GB/s", "% of roof"]]
    for one in report["roof"]["achieved"]:
        rows.append(
            [
                str(one["concurrency"]),
                one["way"],
                str(one["context"]),
                f"{one['bytes'] / 1e6:.1f}",
                f"{1e3 * one['seconds']:.3f}",
                f"{one['gigabytes_per_second']:.1f}",
                f"{one['percent_of_roof']:.1f}",
            ]
        )
    top = report["roof"]["bytes_per_second"] / 1e9
    return Table(f"memory: a roof of {top:.0f} GB/s ({report['roof']['source']})", rows)


def _peers(report: Report) -> Table:
    peers = report["peers"]
    rows = [["concurrency", "program", "tokens/s", "first token ms", "ms/token", "p95", "same tokens as plain"]]
    ours = {speed["concurrency"]: speed["ways"] for speed in report["speed"]}
    for one in peers["speed"]:
        for name, way in ours.get(one["concurrency"], {}).items():
            rows.append([str(one["concurrency"]), f"dspine-jax, {name}", *_latencies(way["figures"]), "-"])
        same = "yes" if one["same_tokens"] else "NO"
        rows.append([str(one["concurrency"]), peers["program"], *_latencies(one["figures"]), same])
    return Table(
        f"peers on the same weights and prompts, on the CPU ({peers['threads']} threads)",
        rows,
        (f"transformers, DFlash assisted generation: not measured, {peers['assisted']}",),
    )


def _latencies(figures: dict[str, Any]) -> Sequence[str]:
    return (
        _spread(figures["tokens_per_second"], 1, ".1f"),
        _spread(figures["first_token_seconds"], 1e3, ".1f"),
        f"{1e3 * figures['token_seconds']['median']:.2f}",
        f"{1e3 * figures['token_seconds_p95']['median']:.2f}",
    )


def _totals(report: Report) -> Iterator[str]:
    memory = report["memory"]
    yield f"peak memory: {memory['bytes'] / 2**20:.0f} MiB ({memory['measure']})"
    if report["speed"] and report["roof"]["omitted"]:
        yield f"share of the memory roof: omitted, {report['roof']['omitted']}"


def _spread(value: dict[str, float], factor: float, form: str) -> str:
    median, low, high = (format(factor * value[name], form) for name in ("median", "low", "high"))
    return f"{median} ({low} to {high})"
