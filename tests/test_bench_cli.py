"""`dspine bench` from its arguments to its table, JSON and exit status, on a tiny random pair."""

import dataclasses
import json
import re

import jax.numpy as jnp
import numpy as np
import pytest

from dspine_jax import DraftOptions, SamplingParams
from serve.benchmark import cli, peers, plots, subject, tables
from serve.benchmark.options import build_parser
from serve.benchmark.roof import find_roof
from serve.benchmark.timeline import FIGURES
from serve.benchmark.workload import Workload, at_random, prompt_hash
from tests import peers as environment
from tests.text_pair import PROMPT, text_pair
from tests.tiny import tiny_target_config

NEW = 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    return str(text_pair(tmp_path_factory.getbasetemp()).converted)


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> list[str]:
    paths = [tmp_path_factory.mktemp("prompts") / f"{index}.py" for index in range(2)]
    for index, path in enumerate(paths):
        path.write_text("\n" * index + PROMPT * 2, encoding="utf-8")
    return [str(path) for path in paths]


@pytest.fixture(scope="module")
def bench(folder, files):
    def run(*flags: str) -> int:
        sizes = ["--prompt-tokens", "8", "--max-new-tokens", str(NEW), "--repeats", "1", "--concurrency", "2"]
        return cli.main([folder, *sizes, *flags, "--files", *files])

    return run


@pytest.fixture(scope="module")
def report(bench, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.json"
    assert bench("--ablate", "bridge,tail", "--roof-gbps", "10", "--json", str(path)) == 0
    return json.loads(path.read_text())


def test_conditions_are_in_the_report(report):
    settings = report["settings"]
    assert (settings["prompts"], settings["prompt_tokens"], settings["max_new_tokens"]) == (2, 8, NEW)
    assert settings["thinking_mode"] == "off" and settings["chat_template"] is False
    assert settings["sampling"]["temperature"] == 0 and settings["forced_acceptance"] is None
    assert re.fullmatch("[0-9a-f]{16}", settings["prompt_hash"])
    assert report["model"]["weights"] == "converted" and report["model"]["dtype"] == "float32"
    assert {"platform", "kind", "host_cpu", "host_cores"} <= report["device"].keys()
    assert {"jax", "python"} <= report["versions"].keys() and report["forced"] is False


def test_every_ablation_emits_plain_decodings_tokens(report):
    rows = {row["name"]: row for row in report["acceptance"]}
    assert list(rows) == ["full", "bridge off", "tail off"]
    for row in rows.values():
        assert row["same_tokens"] is True and row["forced"] is False
        # Two requests; each one's first token is in no cycle.
        assert row["tokens"] == 2 * (NEW - 1) and sum(row["histogram"]) == row["cycles"]


def test_every_concurrency_is_measured_both_ways(report):
    assert [speed["concurrency"] for speed in report["speed"]] == [2]
    for speed in report["speed"]:
        assert speed["ratio_one_dispatch"] is None  # only on request
        assert set(speed["ways"]) == {"speculative", "plain"}
        for way in speed["ways"].values():
            assert set(way["figures"]) == set(FIGURES)
            assert all(value["low"] > 0 for value in way["figures"].values())
    assert [(one["concurrency"], one["way"]) for one in report["warm_up"]] == [(2, "speculative"), (2, "plain")]
    assert all(one["compiled"]["programs"] >= 3 for one in report["warm_up"])
    assert [one["concurrency"] for one in report["stages"]] == [2]
    assert len(report["cancellation"]) == 2 and all(one["seconds"]["high"] > 0 for one in report["cancellation"])
    assert report["memory"]["bytes"] > 2**20 and "process" in report["memory"]["measure"]


def test_the_share_of_the_roof_is_bytes_over_time(report):
    assert len(report["roof"]["achieved"]) == 2
    for one in report["roof"]["achieved"]:
        assert one["bytes"] == sum(one["parts"].values())
        assert one["context"] == 8 + NEW // 2
        assert one["percent_of_roof"] == pytest.approx(100 * one["bytes"] / one["seconds"] / 10e9)
    assert "cpu is not known here; give it with --roof-gbps" in str(find_roof(None))


def test_text_and_markdown_say_the_same(report):
    lines, marked = "\n".join(tables.text(report)), "\n".join(tables.markdown(report))
    for part in (
        "full",
        "tail off",
        "speculative over plain",
        "whole cycle",
        "10 GB/s",
        "peak memory",
        "chat template",
    ):
        assert part in lines and part in marked
    assert "FORCED" not in lines + marked
    assert "| full | " in marked


def test_forced_acceptance_is_marked_everywhere(bench, capsys, tmp_path):
    path = tmp_path / "forced.json"
    flags = ("--force-acceptance", "3", "--skip-prefill", "--seed", "7", "--parts", "acceptance")
    assert bench(*flags, "--json", str(path)) == 0
    out = capsys.readouterr().out
    assert "FORCED ACCEPTANCE: 3.00 tokens per cycle were asked for" in out and "full (FORCED)" in out
    report = json.loads(path.read_text())
    assert report["forced"] and report["acceptance"][0]["forced"] and report["acceptance"][0]["same_tokens"] is None
    asked = report["settings"]["forced_acceptance"]
    assert asked["tokens_per_cycle"] == pytest.approx(3) and asked["seed"] == 7 and len(asked["shares"]) == 5


def test_every_sampled_request_has_a_seed_of_its_own():
    prompts = tuple([1, 2, number] for number in range(5))
    load = Workload(prompts, "here", 4, SamplingParams(temperature=0.5, seed=10))
    batches = load.batches(tiny_target_config(), 2, count=4)
    assert [batch.seeds for batch in batches] == [(10, 11), (12, 13)]
    assert [len(batch.prompts) for batch in load.batches(tiny_target_config(), 2)] == [2, 2, 1]
    greedy = dataclasses.replace(load, sampling=SamplingParams()).batches(tiny_target_config(), 5)
    assert greedy[0].sampling == () and greedy[0].stop_token_ids == ()


@pytest.mark.skipif(not environment.available(), reason=environment.MISSING)
def test_transformers_runs_beside_us_and_says_the_same(bench, capsys):
    assert bench("--peers", "--peers-python", str(environment.PYTHON), "--parts", "speed", "--json") == 0
    found = json.loads(capsys.readouterr().out)["peers"]
    assert [one["concurrency"] for one in found["speed"]] == [2]
    assert all(one["same_tokens"] and set(one["figures"]) == set(FIGURES) for one in found["speed"])
    # The target's recurrent state cannot be cut back, so assisted generation refuses it.
    assert "it refuses this target" in found["assisted"] and "stateful" in found["assisted"]


def test_plots(report, tmp_path):
    pytest.importorskip("matplotlib", reason="the extra `plot` is not installed")
    written = list(plots.write(report, tmp_path / "plots"))
    assert [path.name for path in written] == ["throughput.png", "stages.png", "acceptance.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written)


def test_a_missing_plot_library_is_named_with_its_extra(bench, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(plots.importlib.util, "find_spec", lambda name: None)
    assert bench("--plots", str(tmp_path)) == 1
    assert "pip install 'dspine-jax[plot]'" in capsys.readouterr().err


def test_a_missing_environment_of_the_peers_is_told_first(bench, capsys):
    assert bench("--peers", "--peers-python", "no-such-python") == 1
    assert "no-such-python does not exist" in capsys.readouterr().err
    with pytest.raises(OSError, match="--peers-python"):
        peers.check(cli.Path("no-such-python"))


def test_random_weights_have_the_preset_s_sizes(monkeypatch):
    # Drawing them is one line; compiling a draw for every shape is not worth a test's time.
    monkeypatch.setattr(subject, "_normal", lambda key, shape, dtype: jnp.zeros(shape, dtype))
    found = subject.random_weights("tiny", dtype="bfloat16", options=DraftOptions(retrieval="direct"))
    facts = found.describe()
    assert (facts["weights"], facts["dtype"], facts["block_size"]) == ("random", "bfloat16", 16)
    assert found.pair.target_config.vocab_size == 1024
    first, again = (at_random(1024, 2, 9)[0] for _ in range(2))
    assert np.array_equal(first, again) and prompt_hash(first) == prompt_hash(again)
    assert prompt_hash(first) != prompt_hash(at_random(1024, 2, 8)[0])
    assert subject.read_target(subject.PRESETS["qwen3.8-27b"][0]).hidden_size == 5120


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "wanted a MODEL_DIR or --random-weights"),
        (["DIR", "--random-weights", "tiny"], "wanted a MODEL_DIR or --random-weights"),
        (["--random-weights", "large"], "invalid choice: 'large'"),
        (["--random-weights", "tiny", "--files", "a"], "leave --files out"),
        (["DIR", "--concurrency", "2", "3"], "divide the greatest"),
        (["DIR", "--concurrency", "0"], "divide the greatest"),
        (["DIR", "--repeats", "0"], "--repeats must be at least 1"),
        (["DIR", "--max-new-tokens", "1"], "--max-new-tokens must be at least 2"),
        (["DIR", "--ablate", "bridge,wings"], "got 'wings'"),
        (["DIR", "--skip-prefill"], "it needs --force-acceptance"),
        (["DIR", "--force-acceptance", "3", "--ablate", "tail"], "leave one out"),
        (["DIR", "--force-acceptance", "3", "--peers"], "leave --peers out"),
        (["DIR", "--temperature", "1", "--peers"], "greedy decoding only"),
        (["DIR", "--temperature", "-1"], "temperature is -1.0"),
        (["DIR", "--tail", "table", "--temperature", "1"], "--tail table knows no probabilities"),
        (["DIR", "--verification", "token", "block"], "several --verification belong to --temperatures"),
        (["DIR", "--widths", "4"], "--widths belong to --temperatures"),
        (["DIR", "--roof-gbps", "0"], "--roof-gbps must be positive"),
    ],
)
def test_wrong_usage_is_told_before_a_model_is_read(flags, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(flags)
    assert stopped.value.code == 2 and message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--force-acceptance", "9"], "the mean is 9.0 tokens per cycle, wanted 1 to 5"),
        (["--verify-width", "6"], "verify_width is 6"),
        (["--concurrency", "4"], "there are only 2 prompts"),
        (["--max-new-tokens", "9999"], "the model's context is 512"),
    ],
)
def test_what_the_pair_cannot_do_is_wrong_usage_too(bench, flags, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        bench(*flags)
    assert stopped.value.code == 2 and message in capsys.readouterr().err


def test_faults_of_the_pair_and_the_prompts(files, folder, tmp_path, capsys):
    assert cli.main([str(tmp_path / "missing")]) == 1
    assert "no such folder" in capsys.readouterr().err
    assert cli.main([folder, "--files", *files, "--prompt-tokens", "900"]) == 1
    assert "shorter than --prompt-tokens 900" in capsys.readouterr().err


def test_help_names_every_part():
    text = build_parser().format_help()
    assert "compare A.json B.json" in text and "FORCED" in text
