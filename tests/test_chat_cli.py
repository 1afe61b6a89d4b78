"""`dspine chat` through pipes, with an engine that says what each test wrote down."""

import io
import sys

import pytest

from serve.chat_cli import cli
from serve.chat_cli.screen import Screen
from serve.engine import Origin
from tests.chat_engine import ASSETS, ScriptedEngine, install


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs the command on these lines; its engine, exit status and output."""

    def call(lines: str, scripts, *arguments: str):
        engine = ScriptedEngine(scripts)
        install(engine, monkeypatch.setattr)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines.encode("utf-8", "surrogateescape"))))
        status = cli.main([str(ASSETS), *arguments])
        captured = capsys.readouterr()
        return engine, status, captured.out, captured.err.removeprefix(f"reading {ASSETS}\n")

    return call


def test_a_conversation_of_two_turns(run):
    scripts = [[["Hello", "b"], [" there.", "d"]], [["I said hello.", "c"]]]
    engine, status, out, err = run("Hi\nWhat?\n", scripts, "--think", "off")
    assert (status, out) == (0, "Hello there.\nI said hello.\n")
    first, second = err.splitlines()
    assert " tokens · " in first and first.endswith(" tokens per cycle")
    assert second.endswith(" tokens per cycle")
    assert "Hi" in engine.prompt(0) and "What?" not in engine.prompt(0)
    places = [engine.prompt(1).index(text) for text in ("Hi", "Hello there.", "What?")]
    assert places == sorted(places)


def test_thinking_is_no_part_of_the_output(run):
    scripts = [[["Let me", "b"], [" see.</thi", "d"], ["nk>\n\nIt is 4.", "c"]]]
    _, status, out, err = run("2 + 2?\n", scripts)
    assert (status, out) == (0, "It is 4.\n")
    assert err.startswith("Let me see.\n")


def test_the_facts_of_an_answer(run):
    scripts = [[["a", "b"], ["b", "d"], ["c", "d"]]]
    _, _, _, err = run("Go\n/stats\n", scripts)
    # Two cycles that accepted one proposal each.
    assert "3 tokens · " in err and " tokens/s · 2.00 tokens per cycle\n" in err
    assert "2.00 tokens per cycle over 2 cycles" in err
    assert "cycles by accepted proposals: 1: 2" in err
    assert "answers: 1, of 3 tokens" in err


def test_commands(run):
    lines = "/system Be brief.\nOne\n/reset\n/think off\nTwo\n/system\n/think maybe\n/what\n/help\nThree\n//slash\n"
    scripts = [[["</think>ok", "b"]], *[[["ok", "b"]]] * 3]
    engine, status, out, err = run(lines, scripts)
    assert (status, out) == (0, "ok\n" * 4)
    prompts = [engine.prompt(index) for index in range(4)]
    assert ["Be brief." in prompt for prompt in prompts] == [True, True, False, False]
    assert "One" not in prompts[1]
    assert [prompt.rstrip().endswith("<think>") for prompt in prompts] == [True, False, False, False]
    assert "/slash" in prompts[3] and "//slash" not in prompts[3]
    assert "got 'maybe', wanted /think on or /think off; it is off" in err
    assert "unknown command /what; /help lists the commands" in err
    assert "/system TEXT" in err


def test_a_line_may_go_on_in_the_next(run):
    engine, _, out, _ = run("one\\\ntwo\n\n   \nend\\", [[["ok", "b"]]] * 2, "--think", "off")
    assert out == "ok\nok\n" and "one\ntwo" in engine.prompt(0)
    assert "end" in engine.prompt(1)


def test_limits_reach_the_request(run):
    engine, *_ = run("Hi\n", [[["ok", "b"]]], "--context", "300", "--temperature", "0.5", "--seed", "3")
    (request,) = engine.requests
    assert request.max_new_tokens == 300 - len(request.prompt)
    assert (request.sampling.temperature, request.sampling.seed) == (0.5, 3)
    engine, *_ = run("Hi\n", [[["ok", "b"]]], "--max-new-tokens", "7")
    assert engine.requests[0].max_new_tokens == 7


def test_errors_lose_only_their_own_message(run):
    long = "word " * 300
    scripts = [["fail"], [["fine", "b"]]]
    engine, status, out, err = run(f"Bad\n{long}\n\udcff\nGood\n", scripts, "--context", "128", "--think", "off")
    assert (status, out) == (1, "fine\n")
    assert "error: its numbers are not finite\n" in err
    assert "and the context is 128; /reset starts anew\n" in err
    assert "not valid Unicode" in err
    assert "Bad" not in engine.prompt(1) and "word" not in engine.prompt(1)


def test_no_colours_and_no_control_characters_for_a_pipe(run):
    out, err = run("Hi\n", [[["\x1b[31mred", "b"]]], "--origins", "--think", "off")[2:]
    assert out == "\x1b[31mred\n"  # a file gets the text as it is
    assert "--origins needs a terminal with colours" in err and "\x1b" not in err


@pytest.mark.parametrize("colours", [True, False])
def test_a_terminal_is_shown_no_control_characters_of_the_model(colours):
    out = io.StringIO()
    screen = Screen(out, io.StringIO(), terminal=True, colours=colours, err_colours=False)
    screen.begin()
    screen.reasoning("\x1b]0;title\x07")
    screen.content("\n\nbell\x07\r\x9b1m\ttab\x7f")
    screen.token("\x1b[2J", Origin.DRAFT)
    screen.end()
    shown = out.getvalue()
    for style in ("\x1b[2m", "\x1b[32m", "\x1b[0m"):
        assert (style in shown) == colours
        shown = shown.replace(style, "")
    assert shown == "␛]0;title␇\n\nbell␇␍\ufffd1m\ttab␡␛[2J\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: MODEL_DIR"),
        (["m", "--context", "0"], "0 is too small"),
        (["m", "--temperature", "-1"], "temperature"),
        (["m", "--think", "maybe"], "invalid choice"),
    ],
)
def test_usage_errors(capsys, arguments, message):
    with pytest.raises(SystemExit) as end:
        cli.main(arguments)
    assert end.value.code == 2 and message in capsys.readouterr().err


def test_faults_of_the_model(capsys, tmp_path):
    for folder, message in {tmp_path / "missing": "no such folder", ASSETS: "no converted folder"}.items():
        assert cli.main([str(folder)]) == 1
        assert message in capsys.readouterr().err
    (tmp_path / "target").mkdir()
    assert cli.main([str(tmp_path)]) == 1
    assert "no chat template" in capsys.readouterr().err
