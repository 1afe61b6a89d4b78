"""The `dspine` command itself: finding sub-commands, and ending cleanly."""

import importlib
import importlib.metadata
import sys
import types

import pytest

from dspine_jax import cli
from tests.checkpoints import python


@pytest.fixture
def command(monkeypatch):
    """Registers a sub-command `probe` with the given function as its `main`."""

    def register(main):
        monkeypatch.setitem(sys.modules, "probe_module", types.SimpleNamespace(main=main))
        monkeypatch.setitem(cli.COMMANDS, "probe", cli.Command("probe_module", "a probe"))

    return register


def test_help_lists_the_commands(capsys):
    assert cli.main(["--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("usage: dspine COMMAND")
    for name, command in cli.COMMANDS.items():
        assert f"  {name} " in out and command.summary in out


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_each_command_exists_and_explains_itself(name, capsys):
    module = importlib.import_module(cli.COMMANDS[name].module)
    with pytest.raises(SystemExit) as end:
        module.main(["--help"])
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: dspine {name}")


def test_version(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"dspine-jax {importlib.metadata.version('dspine-jax')}\n"


def test_unknown_and_missing_commands_are_usage_errors(capsys):
    assert cli.main(["generat"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("dspine: error: unknown command 'generat'; choose one of convert, inspect, ")
    assert cli.main([]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("usage: dspine")


def test_arguments_and_exit_status_pass_through(command):
    seen = []
    command(lambda argv: seen.append(argv) or 7)
    assert cli.main(["probe", "a", "--b"]) == 7
    assert seen == [["a", "--b"]]


def test_a_missing_optional_package_is_named_with_its_remedy(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    for name in ("serve.generate_cli", "serve.text"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert cli.main(["generate", "--help"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("dspine generate: error: the package tokenizers is not installed; ")
    assert "pip install 'dspine-jax[serve]'" in err


def test_other_missing_modules_are_not_hidden(monkeypatch):
    monkeypatch.setitem(cli.COMMANDS, "probe", cli.Command("no_such_module", "a probe"))
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        cli.main(["probe"])


def test_an_interrupt_ends_with_130(command, capsys):
    def interrupted(argv):
        raise KeyboardInterrupt

    command(interrupted)
    assert cli.main(["probe"]) == 130
    assert capsys.readouterr().err == "\ndspine: interrupted\n"


def test_help_needs_no_device_and_a_closed_pipe_is_silent():
    code = """
import os, sys
read, write = os.pipe()
os.close(read)
os.dup2(write, 1)
from dspine_jax.cli import main
status = main(["--help"])
assert "orbax" not in sys.modules and "tokenizers" not in sys.modules
sys.exit(status)
"""
    done = python(code, check=False)
    assert (done.returncode, done.stderr) == (141, "")
