"""`dspine bench compare`: ratios of what is comparable, and every reason why something is not."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from serve.benchmark import comparing
from serve.benchmark.comparing import SAME, TOLD, differences
from serve.benchmark.report import FORMAT, FORMAT_VERSION
from serve.benchmark.timeline import FIGURES


def spread(median: float) -> dict[str, float]:
    return {"median": median, "low": 0.9 * median, "high": 1.1 * median}


def a_report(rate: float = 100.0) -> dict[str, Any]:
    way = {"figures": {name: spread(rate) for name in FIGURES}, "one_dispatch": spread(2 * rate)}
    row = {"name": "full", "forced": False, "tokens_per_cycle": 4.0}
    report: dict[str, Any] = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "model": {},
        "device": {},
        "settings": {},
        "acceptance": [row],
        "speed": [{"concurrency": size, "ways": {"speculative": way, "plain": way}} for size in (1, 8)],
    }
    for path in (*SAME.values(), *TOLD.values()):
        place = report
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = f"this {path[-1]}"
    report["settings"]["forced_acceptance"] = None
    return report


def changed(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    report = copy.deepcopy(a_report())
    place = report
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return report


def write(folder: Path, *reports: dict[str, Any]) -> list[str]:
    paths = [folder / f"{index}.json" for index in range(len(reports))]
    for path, report in zip(paths, reports, strict=True):
        path.write_text(json.dumps(report))
    return [str(path) for path in paths]


@pytest.mark.parametrize(("name", "path"), SAME.items())
def test_each_condition_that_differs_is_a_reason(name, path):
    (reason,) = differences(a_report(), changed(path, "another"))
    assert reason.startswith(f"{name}: ") and reason.endswith(" and another")


def test_all_reasons_are_told_at_once(tmp_path, capsys):
    other = changed(("settings", "prompt_hash"), "another")
    other["settings"]["forced_acceptance"] = {"tokens_per_cycle": 5.0}
    other["speed"] = [speed | {"concurrency": 4} for speed in other["speed"][:1]]
    assert comparing.main(write(tmp_path, a_report(), other)) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n  - ") == 3
    for part in ("prompts: ", "forced acceptance: none and {'tokens", "concurrency: [1, 8] and [4] have none"):
        assert part in captured.err


@pytest.mark.parametrize(("name", "path"), TOLD.items())
def test_what_is_compared_may_differ_and_is_told(name, path, tmp_path, capsys):
    assert comparing.main(write(tmp_path, a_report(), changed(path, "another"))) == 0
    assert f"{name}: A this {path[-1]}, B another\n" in capsys.readouterr().out


def test_ratios_have_the_range_that_both_spreads_allow(tmp_path, capsys):
    faster = a_report(150.0)
    faster["speed"] = faster["speed"][:1]
    faster["acceptance"][0]["tokens_per_cycle"] = 4.5
    assert comparing.main(write(tmp_path, a_report(), faster)) == 0
    out = capsys.readouterr().out
    assert "tokens per cycle, full: 4.000 to 4.500" in out
    line = next(line for line in out.splitlines() if "speculative" in line and "tokens_per_second" in line)
    assert line.split() == ["1", "speculative", "tokens_per_second", "1.500", "(1.227", "to", "1.833)"]
    assert not [line for line in out.splitlines() if line.startswith("   8")]


def test_forced_runs_are_marked(tmp_path, capsys):
    forced = changed(("settings", "forced_acceptance"), {"tokens_per_cycle": 5.0})
    assert comparing.main(write(tmp_path, forced, forced)) == 0
    assert "FORCED tokens per cycle" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}", "is no report of"),
        (json.dumps({"format": FORMAT, "format_version": 99}), "format_version is 99"),
        ("no JSON", "0.json"),
    ],
)
def test_what_is_no_report_is_refused(content, message, tmp_path, capsys):
    (tmp_path / "0.json").write_text(content)
    (other,) = write(tmp_path / ".", a_report())[:1]
    (tmp_path / "0.json").write_text(content)
    assert comparing.main([str(tmp_path / "0.json"), other]) == 1
    assert message in capsys.readouterr().err
