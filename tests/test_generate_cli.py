"""`dspine generate` on a tiny random pair, against the engine's plain decoding and the library's decoder."""

import io
import json
import shutil
import signal
import sys

import jax
import numpy as np
import pytest
from tokenizers import Tokenizer

from dspine_jax import DraftOptions, Stream, WeightsError, cli, load
from serve import generate_cli
from serve.comparison import Difference, first_difference, next_scores
from serve.completion import Request
from serve.prompt import SIZE_LIMIT
from tests.text_pair import END, PROMPT, TextPair, text_pair

COUNT = 40


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> TextPair:
    return text_pair(tmp_path_factory.getbasetemp())


@pytest.fixture(scope="module")
def pair(folders):
    return load(folders.converted)


@pytest.fixture(scope="module")
def tokenizer(folders) -> Tokenizer:
    return Tokenizer.from_file(str(folders.target / "tokenizer.json"))


@pytest.fixture(scope="module")
def wanted(pair, tokenizer) -> list[int]:
    """What plain decoding continues the prompt with."""
    prompt = tokenizer.encode(PROMPT).ids
    stream = Stream(pair, prompt, max_new_tokens=COUNT, stop_token_ids=(), speculative=False)
    return [int(token) for tokens in stream for token in tokens]


@pytest.fixture
def run(folders, capsys):
    """Runs the command with the converted pair, the prompt and these arguments."""

    def call(*arguments: str, model=folders.converted, prompt=(PROMPT,)):
        status = generate_cli.main([str(model), *prompt, "--max-new-tokens", str(COUNT), *arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


def with_eos(folders: TextPair, folder, token: str):
    """A copy of the converted pair whose tokenizer calls this token the end of a text."""
    shutil.copytree(folders.converted, folder)
    (folder / "target" / "tokenizer_config.json").write_text(json.dumps({"eos_token": token}))
    return folder


def test_the_text_is_plain_decoding_s(run, wanted, tokenizer):
    text = tokenizer.decode(wanted)
    assert END not in wanted and len(wanted) == COUNT
    assert run() == (0, text, "")
    assert run("--no-stream") == (0, text, "")
    assert run("--plain") == (0, text, "")


def test_text_is_flushed_once_per_cycle(run, monkeypatch, wanted, tokenizer):
    flushed, buffer = [], []
    monkeypatch.setattr(sys.stdout, "write", buffer.append)
    monkeypatch.setattr(sys.stdout, "flush", lambda: flushed.append("".join(buffer)))
    stats = json.loads(run_json(run, monkeypatch))["stats"]
    assert run()[0] == 0
    assert flushed[-1] == "".join(buffer) == tokenizer.decode(wanted)
    # The first token, each cycle, and text held to the end; a cycle may complete no character.
    assert 1 < len(buffer) <= 2 + stats["cycles"]
    assert {"".join(buffer[: count + 1]) for count in range(len(buffer))} <= set(flushed)


def run_json(run, monkeypatch) -> str:
    output = io.StringIO()
    with monkeypatch.context() as context:
        context.setattr(sys, "stdout", output)
        assert run("--json")[0] == 0
    return output.getvalue()


def test_json_is_one_object_and_agrees_with_itself(run, wanted, tokenizer, folders):
    status, out, err = run("--json")
    assert (status, err, out.count("\n")) == (0, "", 1)
    result = json.loads(out)
    assert result["token_ids"] == wanted and result["text"] == tokenizer.decode(wanted)
    assert (result["finish_reason"], result["mode"]) == ("length", "speculative")
    assert result["prompt_tokens"] == len(tokenizer.encode(PROMPT).ids)
    stats = result["stats"]
    assert stats["block_size"] == len(stats["accepted_histogram"]) == folders.drafter_config.block_size
    assert sum(stats["accepted_histogram"]) == stats["cycles"]
    assert stats["acceptance_length"] == pytest.approx((COUNT - 1) / stats["cycles"])
    # Compile time would be in it: no speed without a warm-up.
    assert result["timing"]["warmed_up"] is False and result["timing"]["tokens_per_second"] is None
    assert result["model"] == {"folder": str(folders.converted)}
    assert (result["device"], result["dtype"]) == ("cpu", "float32")
    assert result["versions"].keys() == {"dspine-jax", "jax", "jaxlib", "flax", "python"}
    assert "plain" not in result


def test_statistics_and_the_comparison_with_plain_decoding(run, wanted, tokenizer):
    status, out, err = run("--stats", "--compare-plain")
    assert (status, out) == (0, tokenizer.decode(wanted))
    lines = err.splitlines()
    assert lines[0].startswith("warming up")
    assert lines[2].startswith(f"tokens: {COUNT} new after a prompt of ")
    assert lines[3].startswith("acceptance length: 1.")
    histogram = [line.split() for line in lines[5:10]]
    assert [int(accepted) for accepted, *_ in histogram] == [0, 1, 2, 3, 4]
    assert f"over {sum(int(count) for _, count, *_ in histogram)} cycles" in lines[3]
    assert lines[10].startswith("speculative: ") and f" tokens/s ({COUNT - 1} tokens in " in lines[10]
    assert lines[11].startswith("plain:       ") and f" tokens/s ({COUNT - 1} tokens in " in lines[11]
    assert "times as fast as plain decoding" in lines[12]
    assert lines[-1] == f"same tokens as plain decoding: yes, all {COUNT}"


def test_json_with_the_comparison(run, wanted):
    status, out, err = run("--json", "--stats", "--compare-plain")
    result = json.loads(out)
    assert status == 0 and "tokens/s" in err
    assert result["plain"]["same_tokens"] is True and result["plain"]["first_difference"] is None
    assert result["plain"]["token_ids"] == wanted
    for timing in (result["timing"], result["plain"]["timing"]):
        assert timing["tokens_per_second"] == pytest.approx((COUNT - 1) / timing["decode_seconds"])


def test_a_stop_string_ends_the_text_before_it(run, wanted, tokenizer):
    text = tokenizer.decode(wanted)
    stop = text[10:13]
    cut = text[: text.index(stop)]
    assert run("--stop", "never found", "--stop", stop) == (0, cut, "")
    result = json.loads(run("--stop", stop, "--json")[1])
    assert (result["text"], result["finish_reason"]) == (cut, "stop")
    count = len(result["token_ids"])
    assert result["token_ids"] == wanted[:count] and stop in tokenizer.decode(wanted[:count])
    assert stop not in tokenizer.decode(wanted[: count - 1])
    assert run("--stop", stop, "--compare-plain")[2].endswith(f"decoding: yes, all {count}\n")


def test_the_tokenizer_s_own_end_of_text_joins_the_model_s(run, folders, wanted, tokenizer, tmp_path):
    place = 9
    token = tokenizer.id_to_token(wanted[place])
    end = wanted.index(wanted[place])
    model = with_eos(folders, tmp_path / "copy", token)
    result = json.loads(run("--json", model=model)[1])
    assert (result["finish_reason"], result["token_ids"]) == ("stop", wanted[: end + 1])
    assert result["text"] == tokenizer.decode(wanted[:end])
    assert json.loads(run("--json", "--ignore-eos", model=model)[1])["token_ids"] == wanted


def test_hugging_face_folders_need_no_conversion(folders, capsys, wanted, tokenizer):
    raw = ["--target", str(folders.target), "--draft", str(folders.draft)]
    assert generate_cli.main([*raw, "--max-new-tokens", str(COUNT), PROMPT]) == 0
    assert capsys.readouterr().out == tokenizer.decode(wanted)


def test_prompts_from_a_file_and_from_standard_input(run, monkeypatch, tmp_path, wanted, tokenizer):
    file = tmp_path / "prompt.txt"
    file.write_bytes(PROMPT.encode())
    text = tokenizer.decode(wanted)
    assert run("--prompt-file", str(file), prompt=()) == (0, text, "")
    for arguments in ((["-"], []), ([], ["--prompt-file", "-"])):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(PROMPT.encode())))
        assert run(*arguments[1], prompt=arguments[0]) == (0, text, "")


def test_the_ways_of_drafting_and_the_dtype_reach_the_loader(run, monkeypatch):
    seen = []

    def refuse(folder, **arguments):
        seen.append(arguments)
        raise WeightsError("seen")

    monkeypatch.setattr(generate_cli, "load", refuse)
    arguments = ["--retrieval", "direct", "--tail", "off", "--no-bridge", "--dtype", "bfloat16"]
    assert run(*arguments) == (1, "", "dspine generate: error: seen\n")
    assert run()[0] == 1
    given = DraftOptions(retrieval="direct", tail="off", bridge=False)
    assert seen == [{"dtype": "bfloat16", "options": given}, {"dtype": None, "options": DraftOptions()}]


def test_a_difference_is_reported_with_the_target_s_margin(pair, wanted, tokenizer):
    request = Request(tokenizer.encode(PROMPT).ids, COUNT, ())
    other = (wanted[5] + 1) % END
    found = first_difference(pair, request, [*wanted[:5], other, *wanted[6:]], wanted)
    scores = next_scores(pair, [*request.prompt, *wanted[:5]])
    assert int(np.argmax(scores)) == wanted[5]
    assert found is not None and (found.position, found.speculative, found.plain) == (5, other, wanted[5])
    assert found.logit_margin == float(scores[wanted[5]] - scores[other]) > 0
    assert first_difference(pair, request, wanted, wanted) is None
    assert first_difference(pair, request, wanted[:3], wanted) == Difference(3, None, wanted[3], None)


@pytest.mark.parametrize(("dtype", "status"), [("float32", 1), ("bfloat16", 0)])
def test_a_difference_fails_the_command_only_in_float32(run, monkeypatch, dtype, status):
    # Only the exit status depends on the dtype, so that nothing is compiled for bfloat16 here.
    original = generate_cli.load
    monkeypatch.setattr(generate_cli, "load", lambda folder, *, dtype, options: original(folder, options=options))
    monkeypatch.setattr(generate_cli, "first_difference", lambda *_: Difference(2, 7, 9, 0.25))
    monkeypatch.setattr(generate_cli, "is_exact", lambda pair: dtype == "float32")
    got, _, err = run("--compare-plain", "--dtype", dtype)
    assert got == status
    assert err.strip() == (
        "same tokens as plain decoding: NO, they differ at new token 2: speculative token 7, plain token 9; "
        "the target scores plain's token 0.25 higher"
    )


def test_a_prompt_of_more_chunks_compiles_nothing_more(pair, caplog):
    """Weights that a checkpoint placed make every later state placed too; the first one must be no exception."""
    for length in (2, 200):
        caplog.clear()
        with jax.log_compiles(), caplog.at_level("WARNING"):
            list(Stream(pair, [5] * length, max_new_tokens=3, stop_token_ids=()))
    assert [record.getMessage() for record in caplog.records if "Compiling" in record.getMessage()] == []


def test_one_token_has_no_speed(folders, capsys):
    assert generate_cli.main([str(folders.converted), PROMPT, "--max-new-tokens", "1", "--stats"]) == 0
    err = capsys.readouterr().err
    assert "acceptance length: none" in err and "no tokens to time" in err


def test_an_interrupt_ends_the_command_with_130(folders, monkeypatch, capsys):
    monkeypatch.setattr(generate_cli, "_show", lambda piece: signal.raise_signal(signal.SIGINT))
    monkeypatch.setattr(cli.importlib.import_module("dspine_jax.compile_cache"), "enable", lambda: None)
    # A shell starts its background jobs with interrupts ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert cli.main(["generate", str(folders.converted), PROMPT, "--max-new-tokens", str(COUNT)]) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err == "\ndspine: interrupted\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no model"),
        (["MODEL"], "no prompt"),
        (["MODEL", "a", "b"], "got 'b' as well; quote a prompt with spaces"),
        (["MODEL", "a", "--prompt-file", "f"], "got 'a' as well; --prompt-file is the prompt"),
        (["MODEL", "a", "--max-new-tokens", "0"], "0 is too small, wanted at least 1"),
        (["MODEL", "a", "--max-new-tokens", "many"], "wanted a whole number, got 'many'"),
        (["MODEL", "a", "--dtype", "float16"], "choose from bfloat16, float32"),
        (["MODEL", "a", "--plain", "--compare-plain"], "not allowed with argument"),
        (["--target", "MODEL", "a"], "--target and --draft belong together"),
        (["MODEL", "a", "--colour", "red"], "unrecognized arguments"),
    ],
)
def test_usage_errors(folders, capsys, arguments, message):
    with pytest.raises(SystemExit) as end:
        generate_cli.main([str(folders.converted) if a == "MODEL" else a for a in arguments])
    captured = capsys.readouterr()
    assert end.value.code == 2 and captured.out == ""
    assert message in captured.err.replace("'bfloat16', 'float32'", "bfloat16, float32")


def test_faults_of_the_model(run, folders, tmp_path):
    broken = shutil.copytree(folders.converted, tmp_path / "broken")
    (broken / min(json.loads((broken / "manifest.json").read_text())["files"])).unlink()
    bare = shutil.copytree(folders.converted, tmp_path / "bare")
    (bare / "target" / "tokenizer.json").unlink()
    (tmp_path / "unfinished.incomplete").mkdir()
    for model, message in {
        tmp_path / "missing": "no such folder; `dspine convert` makes one",
        folders.target: "no converted folder (it has no manifest.json)",
        tmp_path / "unfinished": "incomplete: its conversion",
        broken: "incomplete or damaged",
        bare: "a model that generates text needs its tokenizer.json",
    }.items():
        status, out, err = run(model=model)
        assert (status, out) == (1, ""), model
        assert err.startswith(f"dspine generate: error: {model}") and message in err


def test_faults_of_the_prompt(run, tmp_path, folders):
    (tmp_path / "empty").write_text("")
    (tmp_path / "latin").write_bytes(b"caf\xe9")
    with (tmp_path / "large").open("wb") as file:
        file.truncate(SIZE_LIMIT + 1)
    (tmp_path / "long").write_text("x " * folders.target_config.max_position_embeddings)
    for file, message in {
        "empty": "is empty",
        "latin": "is not UTF-8: byte 3 is 0xe9",
        "large": f"holds more than {SIZE_LIMIT} bytes",
        "long": "but the model's context is 512",
        "missing": "cannot be read",
        ".": "cannot be read",
    }.items():
        status, out, err = run("--prompt-file", str(tmp_path / file), prompt=())
        assert (status, out, err.count("\n")) == (1, "", 1), file
        assert err.startswith("dspine generate: error: ") and message in err
    assert run(prompt=("",))[::2] == (
        1,
        "dspine generate: error: the prompt is empty; a prompt needs at least one token\n",
    )
    assert "not valid Unicode" in run(prompt=("\udcff",))[2]
    assert "a stop string is empty" in run("--stop", "")[2]


def test_a_tokenizer_larger_than_the_vocabulary_is_refused(run, folders, tmp_path, tokenizer):
    model = shutil.copytree(folders.converted, tmp_path / "copy")
    larger = Tokenizer.from_str(tokenizer.to_str())
    larger.add_tokens(["one more"])
    larger.save(str(model / "target" / "tokenizer.json"))
    status, _, err = run(model=model)
    assert status == 1 and "the tokenizer has 301 tokens, the target only 300" in err
