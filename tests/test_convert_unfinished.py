"""A conversion that does not end leaves nothing that loads, and nothing that stops the next one."""

import fcntl
import os
import signal
from pathlib import Path

import pytest

from convert import cli, conversion
from dspine_jax.checkpoint import restore
from dspine_jax.errors import WeightsError
from tests.checkpoints import DRAFTER, TARGET, expected_flat, flat_equal, python, write_pair

KILL = """
import os, signal, sys
from convert import cli, conversion
from dspine_jax.manifest import Manifest

def kill(*_):
    os.kill(os.getpid(), signal.SIGKILL)

where, target, draft, out = sys.argv[1:]
if where == "manifest":
    Manifest.write = kill
else:
    read, calls = conversion.read_entry, []
    def read_then_kill(*arguments):
        calls.append(None)
        return kill() if len(calls) == int(where) else read(*arguments)
    conversion.read_entry = read_then_kill
cli.main(["--target", target, "--draft", draft, "--out", out])
"""


def convert(target: Path, draft: Path, out: Path) -> int:
    return cli.main(["--target", str(target), "--draft", str(draft), "--out", str(out)])


@pytest.mark.parametrize("where", ["30", "80", "manifest"])
def test_a_killed_conversion_is_incomplete_and_can_be_repeated(tmp_path, where):
    target, draft = write_pair(tmp_path)
    out = tmp_path / "out"
    done = python(KILL, where, target, draft, out, check=False)
    assert done.returncode == -signal.SIGKILL
    assert not out.exists()
    for folder in (out, tmp_path / "out.incomplete"):
        with pytest.raises(WeightsError, match="incomplete"):
            restore(folder)
    assert convert(target, draft, out) == 0
    assert flat_equal(restore(out)[2], expected_flat(TARGET, 1))
    assert flat_equal(restore(out)[3], expected_flat(DRAFTER, 2))
    assert {path.name for path in tmp_path.iterdir()} == {"hf-target", "hf-draft", "out"}


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (WeightsError("the file changed"), 1, "error: the file changed"),
        (OSError(28, "No space left on device"), 1, "No space left"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_an_error_in_the_middle_removes_what_was_written(tmp_path, capsys, monkeypatch, error, status, message):
    target, draft = write_pair(tmp_path)
    read, calls = conversion.read_entry, []

    def fail_later(*arguments):
        calls.append(None)
        if len(calls) == 60:
            raise error
        return read(*arguments)

    monkeypatch.setattr(conversion, "read_entry", fail_later)
    assert convert(target, draft, tmp_path / "out") == status
    assert message in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"hf-target", "hf-draft"}


def test_two_conversions_into_one_place(tmp_path, capsys):
    target, draft = write_pair(tmp_path)
    stage = tmp_path / "out.incomplete"
    stage.mkdir()
    (stage / "theirs").write_text("x")
    with open(stage / ".lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert convert(target, draft, tmp_path / "out") == 1
        assert "another conversion is writing there" in capsys.readouterr().err
        assert (stage / "theirs").exists()
    assert convert(target, draft, tmp_path / "out") == 0
    assert not stage.exists() and not (tmp_path / "out" / "theirs").exists()


def test_a_replacement_that_fails_at_the_end_keeps_the_old_folder(tmp_path, capsys, monkeypatch):
    target, draft = write_pair(tmp_path)
    out = tmp_path / "out"
    assert convert(target, draft, out) == 0
    before = (out / "manifest.json").read_bytes()
    rename = os.rename

    def fail_for_the_new_folder(source, destination):
        if Path(source).name == "out.incomplete":
            raise OSError("the disk went away")
        rename(source, destination)

    monkeypatch.setattr(os, "rename", fail_for_the_new_folder)
    arguments = ["--target", str(target), "--draft", str(draft), "--out", str(out), "--dtype", "float32"]
    assert cli.main([*arguments, "--overwrite"]) == 1
    assert "the disk went away" in capsys.readouterr().err
    assert (out / "manifest.json").read_bytes() == before and restore(out)[0] == TARGET
    assert {path.name for path in tmp_path.iterdir()} == {"hf-target", "hf-draft", "out"}
