"""Conversion to Orbax: same bits out as in, the same bytes each time, a manifest that says what was read."""

import dataclasses
import hashlib
import io
import json
import shutil
from collections import namedtuple
from pathlib import Path

import numpy as np
import orbax.checkpoint as ocp
import pytest

from convert import cli, orbax_stream, small_files
from convert.progress import Progress
from dspine_jax.checkpoint import restore
from tests.checkpoints import (
    DRAFTER,
    TARGET,
    drafter_tensors,
    expected_flat,
    flat_equal,
    target_tensors,
    write_folder,
    write_pair,
)


def convert(target: Path, draft: Path, out: Path, *more: str) -> int:
    return cli.main(["--target", str(target), "--draft", str(draft), "--out", str(out), *more])


def weight_files(out: Path) -> dict[str, bytes]:
    """Contents of all weight files; Orbax's notes on time and place are no weights."""
    notes = {"_CHECKPOINT_METADATA", "commit_success.txt"}
    files = [path for path in sorted((out / "weights").rglob("*")) if path.is_file() and path.name not in notes]
    return {path.relative_to(out).as_posix(): path.read_bytes() for path in files}


def test_converted_weights_are_the_checkpoints_bits(tmp_path, capsys):
    target, draft = write_pair(tmp_path, extra_target={"mtp.fc.weight": np.zeros((2, 2), np.float32)})
    assert convert(target, draft, tmp_path / "out") == 0
    target_config, drafter_config, target_flat, drafter_flat = restore(tmp_path / "out")
    assert (target_config, drafter_config) == (TARGET, DRAFTER)
    assert flat_equal(target_flat, expected_flat(TARGET, 1))
    assert flat_equal(drafter_flat, expected_flat(DRAFTER, 2))
    printed = capsys.readouterr()
    assert "target: 56 of 56 parameters filled, 1 tensors ignored, from 1 file" in printed.out
    assert "drafter: 47 of 47 parameters filled, 0 tensors ignored, from 1 file" in printed.out
    assert printed.err == ""


def test_shards_give_the_same_weights(tmp_path):
    tensors = target_tensors()
    shards = {name: f"m-{number % 3}.safetensors" for number, name in enumerate(tensors)}
    target = write_folder(tmp_path / "t", TARGET.to_hf(), tensors, shards=shards)
    single, draft = write_pair(tmp_path)
    assert convert(target, draft, tmp_path / "a") == convert(single, draft, tmp_path / "b") == 0
    assert weight_files(tmp_path / "a") == weight_files(tmp_path / "b")


def test_any_orbax_user_can_read_the_weights(tmp_path):
    target, draft = write_pair(tmp_path)
    assert convert(target, draft, tmp_path / "out") == 0
    with ocp.PyTreeCheckpointer() as checkpointer:
        flat = checkpointer.restore(tmp_path / "out" / "weights" / "drafter")
    assert flat_equal(flat, expected_flat(DRAFTER, 2))


def test_converting_twice_gives_the_same_bytes(tmp_path, monkeypatch):
    """Also where a tensor is cut into many files and its sizes are prime, so that no cut is even."""
    monkeypatch.setattr(orbax_stream, "CHUNK_BYTES", 4096)
    prime = dataclasses.replace(TARGET, vocab_size=97, hidden_size=37)
    drafter = dataclasses.replace(DRAFTER, vocab_size=97, hidden_size=37)
    target, draft = write_pair(tmp_path, target=prime, drafter=drafter)
    assert convert(target, draft, tmp_path / "first") == convert(target, draft, tmp_path / "second") == 0
    first, second = weight_files(tmp_path / "first"), weight_files(tmp_path / "second")
    assert first == second
    assert (tmp_path / "first/manifest.json").read_bytes() == (tmp_path / "second/manifest.json").read_bytes()
    cut = {name: content for name, content in first.items() if "/lm_head.weight/" in name and ".zarray" not in name}
    assert len(cut) > 1 and sum(map(len, cut.values())) == 97 * 37 * 2
    assert flat_equal(restore(tmp_path / "first")[2], expected_flat(prime, 1))


def test_the_manifest_tells_the_sources(tmp_path):
    target, draft = write_pair(tmp_path)
    assert convert(target, draft, tmp_path / "out", "--dtype", "float32") == 0
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    content = (draft / "model.safetensors").read_bytes()
    assert manifest["sources"]["drafter"]["files"] == [
        {"name": "model.safetensors", "size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    ]
    assert manifest["dtype"] == "float32" and manifest["dspine_version"]
    assert manifest["configs"]["drafter"] == dataclasses.replace(DRAFTER, dtype="float32").to_hf()
    channels = 2 * 2 * 8 + 6 * 12
    assert manifest["parameters"]["target"]["layers.0.linear_attn.conv1d.weight"] == {
        "shape": [channels, 4],
        "dtype": "float32",
        "tensor": "model.language_model.layers.0.linear_attn.conv1d.weight",
        "transform": "squeeze_conv",
    }
    assert manifest["files"] == {name: len(content) for name, content in weight_files(tmp_path / "out").items()}


def test_dtype_option_reaches_the_leaves(tmp_path):
    wide = (dataclasses.replace(TARGET, dtype="float32"), dataclasses.replace(DRAFTER, dtype="float32"))
    target, draft = write_pair(tmp_path, target=wide[0], drafter=wide[1])
    assert convert(target, draft, tmp_path / "out", "--dtype", "bfloat16") == 0
    target_config, _, target_flat, drafter_flat = restore(tmp_path / "out")
    assert target_config.dtype == "bfloat16"
    assert flat_equal(target_flat, expected_flat(wide[0], 1, "bfloat16"))
    assert {str(value.dtype) for value in drafter_flat.values()} == {"bfloat16"}


def test_map_option(tmp_path, capsys):
    tensors = drafter_tensors()
    tensors["odd"] = tensors.pop("injection.receiver_gate.weight")
    draft = write_folder(tmp_path / "d", DRAFTER.to_hf(), tensors)
    target, _ = write_pair(tmp_path)
    assert convert(target, draft, tmp_path / "out") == 1
    assert "injection.receiver_gate.weight" in capsys.readouterr().err
    assert convert(target, draft, tmp_path / "out", "--map", "drafter:injection.receiver_gate.weight=odd") == 0
    assert flat_equal(restore(tmp_path / "out")[3], expected_flat(DRAFTER, 2))


def test_small_files_travel_and_code_does_not(tmp_path, monkeypatch, capsys):
    target, draft = write_pair(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        (target / name).write_text("{}")
    (target / "chat_template.jinja").write_text("{{ messages }}")
    for name in ("modeling.py", "training_args.bin", "README.md"):
        (target / name).write_text("x")
    assert convert(target, draft, tmp_path / "out") == 0
    assert {path.name for path in (tmp_path / "out" / "target").iterdir()} == {
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
    }
    assert (tmp_path / "out/target/config.json").read_bytes() == (target / "config.json").read_bytes()
    monkeypatch.setattr(small_files, "SIZE_LIMIT", 10)
    assert convert(target, draft, tmp_path / "again") == 1
    assert "exceed the limit of 10" in capsys.readouterr().err


@pytest.mark.parametrize("source", ["out", "out/target", "out/weights/target"])
def test_a_converted_folder_is_no_source(tmp_path, capsys, source):
    target, draft = write_pair(tmp_path)
    assert convert(target, draft, tmp_path / "out") == 0
    capsys.readouterr()
    assert convert(tmp_path / source, draft, tmp_path / "again") == 1
    assert "already converted by dspine" in capsys.readouterr().err
    assert not (tmp_path / "again").exists()


def test_the_multi_token_prediction_layer_changes_nothing(tmp_path):
    plain, draft = write_pair(tmp_path / "plain")
    extra, _ = write_pair(tmp_path / "extra", extra_target={"mtp.norm.weight": np.ones(40, np.float32)})
    assert convert(plain, draft, tmp_path / "a") == convert(extra, draft, tmp_path / "b") == 0
    assert weight_files(tmp_path / "a") == weight_files(tmp_path / "b")


def test_existing_output_is_kept_unless_it_may_be_replaced(tmp_path, capsys):
    target, draft = write_pair(tmp_path)
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine").write_text("x")
    assert convert(target, draft, out) == convert(target, draft, out, "--overwrite") == 1
    printed = capsys.readouterr().err
    assert "choose another, or --overwrite" in printed and "never replaced" in printed
    assert (out / "mine").read_text() == "x"
    shutil.rmtree(out)
    assert convert(target, draft, out) == 0
    assert convert(target, draft, out) == 1
    assert convert(target, draft, out, "--overwrite", "--dtype", "float32") == 0
    assert restore(out)[0].dtype == "float32"
    assert {path.name for path in tmp_path.iterdir()} == {"hf-target", "hf-draft", "out"}


@pytest.mark.parametrize("out", ["hf-target", "hf-target/out", "hf-draft/a/b", "."])
def test_output_may_not_overlap_a_source(tmp_path, capsys, out):
    target, draft = write_pair(tmp_path)
    assert convert(target, draft, tmp_path / out) == 1
    assert "overlaps the source" in capsys.readouterr().err
    assert {path.name for path in target.iterdir()} == {"config.json", "model.safetensors"}


def test_a_full_disk_is_seen_before_writing(tmp_path, capsys, monkeypatch):
    target, draft = write_pair(tmp_path)
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9, 1000))
    assert convert(target, draft, tmp_path / "deep" / "out") == 1
    assert "has 0.00 GB free" in capsys.readouterr().err
    assert not (tmp_path / "deep").exists()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_for_terminals_only():
    for stream, shown in ((Terminal(), True), (io.StringIO(), False)):
        with Progress(200, stream) as progress:
            progress.advance(50, "first")
            progress.advance(150, "last")
        assert ("100%" in stream.getvalue() and "last" in stream.getvalue()) == shown
        assert bool(stream.getvalue()) == shown


def test_bad_arguments_end_with_a_message(tmp_path, capsys):
    target, draft = write_pair(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        convert(target, draft, tmp_path / "out", "--dtype", "int8")
    assert stopped.value.code == 2
    assert convert(tmp_path / "none", draft, tmp_path / "out") == 1
    assert "dspine convert: error:" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
