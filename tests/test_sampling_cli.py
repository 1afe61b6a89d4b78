"""Sampling through `dspine generate` and `dspine bench`."""

import json

import pytest

from serve import generate_cli
from serve.benchmark import cli as bench_cli
from serve.benchmark.sampled import SampledAcceptance, table
from serve.sampling_options import params_of
from tests.text_pair import PROMPT, text_pair


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--temperature", "-1"], "temperature is -1.0"),
        (["--temperature", "0.7", "--compare-plain"], "--compare-plain compares tokens, which are equal only at"),
        (["--top-p", "2"], "top_p is 2.0"),
        (["--logit-bias", "4"], "argument --logit-bias: wanted ID=X, got '4'"),
        (["--logit-bias", "4=1", "--logit-bias", "4=2"], "--logit-bias names a token twice"),
        (["--logprobs", "2"], "--logprobs are part of the JSON object"),
        (["--plain", "--verify-width", "4"], "--plain verifies nothing"),
        (["--verify-width", "all"], "wanted a number of rows or auto, got 'all'"),
        (["--tail", "table", "--min-tokens", "3"], "--tail table knows no probabilities"),
    ],
)
def test_wrong_usage_is_told_before_a_model_is_read(flags, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        generate_cli.main(["no-such-folder", "text", *flags])
    assert stopped.value.code == 2 and message in capsys.readouterr().err


def test_flags_are_the_fields():
    flags = (
        "DIR TEXT --temperature 0.5 --top-k 3 --top-p 0.9 --min-p 0.1 --seed 7 --presence-penalty 1"
        " --frequency-penalty 2 --repetition-penalty 1.5 --logit-bias 4=-1.5 --logit-bias 5=2 --min-tokens 3"
        " --bad-token-ids 1 2 --allowed-token-ids 3 4 5"
    )
    arguments = generate_cli.build_parser().parse_args(flags.split())
    params = params_of(arguments, logprobs=2)
    assert (params.temperature, params.top_k, params.top_p, params.min_p, params.seed) == (0.5, 3, 0.9, 0.1, 7)
    assert (params.presence_penalty, params.frequency_penalty, params.repetition_penalty) == (1, 2, 1.5)
    assert params.logit_bias == {4: -1.5, 5: 2.0} and params.min_tokens == 3 and params.logprobs == 2
    assert (params.bad_token_ids, params.allowed_token_ids) == ((1, 2), (3, 4, 5))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    return str(text_pair(tmp_path_factory.getbasetemp()).converted)


def test_a_sampled_run_tells_its_seed_and_repeats(folder, capsys):
    flags = ["--max-new-tokens", "8", "--ignore-eos", "--temperature", "1", "--json", "--logprobs", "2"]
    runs = []
    for seed in ([], ["--seed", "SEED"]):
        again = [flag if flag != "SEED" else str(runs[0]["seed"]) for flag in seed]
        assert generate_cli.main([folder, PROMPT, *flags, *again]) == 0
        runs.append(json.loads(capsys.readouterr().out))
    first, second = runs
    assert first["token_ids"] == second["token_ids"] and first["seed"] == second["seed"]
    assert len(first["logprobs"]) == len(first["token_ids"]) == 8
    for entry in first["logprobs"]:
        (_, best), (_, next_best) = entry["top"]
        assert 0 >= best >= next_best and entry["logprob"] <= best
    assert first["stats"]["target_rows"] == 5 * first["stats"]["cycles"]


def test_bench_measures_sampled_acceptance(folder, tmp_path, capsys):
    files = [tmp_path / f"{index}.py" for index in (1, 2)]
    for index, file in enumerate(files):
        file.write_text(PROMPT * (index + 1), encoding="utf-8")
    flags = "--prompt-tokens 8 --max-new-tokens 6 --temperatures 1 --widths 2 --verification token --samples 2 --json"
    assert bench_cli.main([folder, *flags.split(), "--files", *map(str, files)]) == 0
    found = json.loads(capsys.readouterr().out)
    (row,) = found["acceptance"]
    assert (row["verify_width"], row["verification"], row["rows_per_cycle"]) == (2, "token", 2)
    assert 1 <= row["acceptance_length"] <= 2 and 4 * 3 <= row["cycles"] <= 4 * 5
    with pytest.raises(SystemExit):
        bench_cli.main([folder, "--widths", "4", "--files", *map(str, files), "--prompt-tokens", "8"])
    assert "--widths belong to --temperatures" in capsys.readouterr().err


def test_the_table_has_a_line_for_every_width_and_method():
    rows = [
        SampledAcceptance(0.0, "token", 16, 3.0, 16.0, 9),
        SampledAcceptance(1.0, "token", 16, 2.5, 16.0, 9),
        SampledAcceptance(1.0, "block", 16, 2.625, 16.0, 9),
        SampledAcceptance(1.0, "token", "auto", 2.25, 6.5, 9),
    ]
    assert table(rows) == [
        "| rows | verification | T = 0 | T = 1 |",
        "| --- | --- | --- | --- |",
        "| 16 | token | 3.00 | 2.50 |",
        "| 16 | block | - | 2.62 |",
        "| auto | token | - | 2.25 (6.5 rows) |",
    ]
