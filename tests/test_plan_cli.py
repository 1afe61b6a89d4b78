"""`dspine plan` from the outside. Compiled programs are stood in for: compiling is tested elsewhere."""

import json
import re
from pathlib import Path

import pytest

from dspine_jax import deviceless
from dspine_jax.planning import cli, frontier_plot, presets, report
from dspine_jax.planning.programs import PROGRAMS, ProgramFacts
from tests.checkpoints import python

TINY = Path(presets.FOLDER).parent / "tiny-pair"
PAIR = {"--target": str(TINY / "target"), "--draft": str(TINY / "draft" / "config.json")}
REQUEST = {"--gpu": "h200", **PAIR, "--slots": "2", "--context": "200"}


@pytest.fixture
def compiled(monkeypatch):
    """The size that was compiled last; each program needs 1000 bytes more than the one before."""
    seen = []

    def compile_programs(pair, state, gpu, *, chunk, names=PROGRAMS):
        seen.append((gpu.name, chunk))
        return tuple(
            ProgramFacts(
                name=name,
                temporary_bytes=1000 * (index + 1),
                new_output_bytes=8,
                argument_bytes=5,
                mosaic_kernels=3,
                lower_seconds=0.5,
                compile_seconds=1.5,
            )
            for index, name in enumerate(names)
        )

    monkeypatch.setattr(cli, "compile_programs", compile_programs)
    return seen


def arguments(*more, **changes):
    request = REQUEST | {f"--{key}": value for key, value in changes.items()}
    return [word for pair in request.items() for word in pair] + list(more)


def plan_json(capsys, *more, **changes):
    status = cli.main(arguments("--json", *more, **changes))
    return status, json.loads(capsys.readouterr().out)


def failure(capsys, argv):
    """The one line on standard error."""
    with pytest.raises(SystemExit) as end:
        cli.main(argv)
    captured = capsys.readouterr()
    assert end.value.code == 2 and captured.out == ""
    (line,) = captured.err.strip().splitlines()
    assert line.startswith("dspine plan: error: ")
    return line.removeprefix("dspine plan: error: ")


def test_json_has_the_documented_keys(capsys, compiled):
    status, facts = plan_json(capsys, "--search", chunk="64")
    assert status == 0 and compiled == [("h200", 64)]
    documented = re.findall(r"^    (\w+(?:, \w+)*)  +\S", report.__doc__ or "", re.MULTILINE)
    assert [key for line in documented for key in line.split(", ")] == list(facts)
    assert facts["fits"] is True and facts["kernels"] is None
    assert facts["request"] == {
        "slots": 2,
        "context": 200,
        "chunk": 64,
        "allocated_slots": 2,
        "positions_per_slot": 256,
    }
    memory = facts["memory"]
    assert memory["temporaries"] == 3008
    used = sum(memory["weights"].values()) + sum(memory["state"].values()) + 3008 + memory["reserve"]
    assert memory["total"] == used and memory["headroom"] == facts["gpu"]["memory_bytes"] - used
    assert [program["name"] for program in facts["programs"]] == list(PROGRAMS)
    for one in ("cycle", "plain_step"):
        assert facts[one]["bytes"] == sum(facts[one]["parts"].values())
        assert facts[one]["memory_seconds"] == pytest.approx(facts[one]["bytes"] / 4.8e12)
    assert facts["limits"] == {"largest_context": 4096, "most_slots": 256}
    assert facts["frontier"][0] == {"slots": 1, "largest_context": 4096}
    assert set(facts["versions"]) >= {"jax", "dspine-jax"}


def test_text_says_the_same(capsys, compiled):
    assert cli.main(arguments("--search")) == 0
    out = capsys.readouterr().out
    for words in ("It fits.", "largest context for 2 slots: 4096 tokens", "FP8 head", "headroom", "floor: "):
        assert words in out
    assert out.count("target weights") == 2
    assert "nan" not in out and "None" not in out


def test_without_compiling_the_plan_says_what_it_lacks(capsys, monkeypatch):
    monkeypatch.setattr(cli, "abstract_gpu", None)
    status, facts = plan_json(capsys, "--no-compile")
    assert status == 0 and facts["programs"] == [] and facts["memory"]["temporaries"] is None
    assert cli.main(arguments("--no-compile")) == 0
    assert "not compiled" in capsys.readouterr().out


def test_too_large_a_plan_has_exit_status_1(capsys):
    released = {"target": "qwen3.8-27b", "draft": "qwen3.8-27b-dspine-b16"}
    argv = arguments("--no-compile", gpu="h100-80gb", slots="8", context="65000", **released)
    assert cli.main(argv) == 1
    assert "IT DOES NOT FIT." in capsys.readouterr().out
    status, facts = plan_json(capsys, "--no-compile", gpu="h100-80gb", slots="8", context="65000", **released)
    assert status == 1 and facts["fits"] is False and facts["memory"]["headroom"] < 0
    assert facts["limits"]["largest_context"] < 65000 and facts["limits"]["most_slots"] < 8


def test_a_larger_share_of_the_memory_is_asked_for_when_needed(capsys):
    released = {"target": "qwen3.8-27b", "draft": "qwen3.8-27b-dspine-b16"}
    assert cli.main(arguments("--no-compile", gpu="h100-80gb", slots="1", context="60000", **released)) == 0
    share = re.search(r"XLA_CLIENT_MEM_FRACTION=(0\.\d\d)", capsys.readouterr().out)
    assert share and 0.75 < float(share.group(1)) < 1


def test_dtype_and_chunk_are_passed_on(capsys, compiled):
    assert plan_json(capsys, dtype="float32")[1]["pair"]["dtype"] == "float32"
    assert compiled == [("h200", 128)]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"slots": "0"}, "--slots is 0, wanted 1 to 256"),
        ({"slots": "257"}, "--slots is 257"),
        ({"slots": "two"}, "invalid int value: 'two'"),
        ({"prefix-cache-bytes": "-1"}, "--prefix-cache-bytes is -1, wanted at least 0"),
        ({"chunk": "0"}, "--chunk is 0, wanted at least 1"),
        ({"context": "4097"}, "--context is 4097, wanted 2 to 4096, the target's max_position_embeddings"),
        ({"context": "1"}, "--context is 1"),
        ({"gpu": "h300"}, "the GPU is 'h300', wanted one of ['b200', 'h100-80gb', 'h200', 'rtx-pro-6000']"),
        (
            {"target": "qwen9"},
            "'qwen9' is no file, no folder and no preset; the presets are qwen3-8b, qwen3-8b-",
        ),
        ({"target": "qwen3-8b", "draft": "qwen3.8-27b-dspine-b16"}, "hidden_size: the target has 4096, the drafter"),
        ({"target": str(TINY)}, "has no config.json"),
        ({"target": str(TINY / "draft")}, 'wanted ["Qwen3ForCausalLM"]. Drafters are no targets.'),
        ({"draft": "qwen3.8-27b-dspine-b16"}, "hidden_size: the target has 192, the drafter wants 5120"),
        ({"dtype": "int8"}, "invalid choice: 'int8'"),
        ({"plot": "x.png"}, "add --search"),
    ],
)
def test_a_bad_argument_is_one_clear_line(capsys, changes, words):
    assert words in failure(capsys, arguments("--no-compile", **changes))


@pytest.mark.parametrize(("text", "words"), [("{", "not valid JSON"), ("[1]", "an object is needed")])
def test_a_bad_file_is_one_clear_line(capsys, tmp_path, text, words):
    path = tmp_path / "config.json"
    path.write_text(text)
    assert words in failure(capsys, arguments("--no-compile", target=str(path)))


def test_a_missing_compiler_is_one_clear_line(capsys, monkeypatch, tmp_path):
    def refuse(*_, **__):
        raise NotImplementedError("topology not implemented\nfor cuda")

    monkeypatch.setattr(deviceless.topologies, "get_topology_desc", refuse)
    spec = tmp_path / "mine.txtpb"
    spec.write_text(deviceless.description("h200"))
    line = failure(capsys, arguments(gpu=str(spec)))
    assert "pip install 'dspine-jax[aot]'" in line and "topology not implemented for cuda" in line


def test_a_missing_plot_library_is_named_with_its_extra(capsys, monkeypatch):
    monkeypatch.setattr(frontier_plot, "available", lambda: False)
    assert "pip install 'dspine-jax[plot]'" in failure(capsys, arguments("--search", plot="x.png"))


def test_plot(capsys, tmp_path):
    pytest.importorskip("matplotlib", reason="the extra `plot` is not installed")
    path = tmp_path / "frontier.png"
    assert cli.main(arguments("--no-compile", "--search", plot=str(path))) == 0
    assert path.read_bytes().startswith(b"\x89PNG\r\n")


def test_a_plan_takes_no_device_unless_one_is_asked_for():
    code = """
import os, sys
del os.environ["JAX_PLATFORMS"]
from dspine_jax.cli import main
status = main(sys.argv[1:])
import jax
assert jax.config.jax_platforms == "cpu", jax.config.jax_platforms
sys.exit(status)
"""
    assert "It fits." in python(code, "plan", *arguments("--no-compile")).stdout
