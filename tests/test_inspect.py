"""`dspine inspect` shows what each tensor would become and fails where something is wrong."""

import json

import numpy as np
import pytest

from convert import inspection
from tests.checkpoints import DRAFTER, TARGET, drafter_tensors, target_tensors, write_folder

CONV = "model.language_model.layers.0.linear_attn.conv1d.weight"


@pytest.fixture
def target(tmp_path):
    extra = {"mtp.fc.weight": np.zeros((2, 2), np.float32)}
    return write_folder(tmp_path / "t", TARGET.to_hf(), target_tensors() | extra)


def test_text_for_a_target(target, capsys):
    assert inspection.main([str(target)]) == 0
    lines = capsys.readouterr().out.splitlines()
    channels = 2 * 2 * 8 + 6 * 12
    assert (
        f"  {CONV} BF16 [{channels}, 1, 4] -> layers.0.linear_attn.conv1d.weight bfloat16 [{channels}, 4]  "
        "(squeeze_conv, by name)"
    ) in lines
    assert any(line.startswith("  mtp.fc.weight ignored: the multi-token") for line in lines)
    assert lines[-1] == "56 of 56 parameters filled, 1 tensors ignored, 0 faults"


def test_json_and_dtype(target, capsys):
    assert inspection.main([str(target), "--json", "--dtype", "float32"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["model"] == "target" and shown["faults"] == [] and "mtp.fc.weight" in shown["ignored"]
    (conv,) = [item for item in shown["parameters"] if item["tensor"] == CONV]
    assert (conv["dtype"], conv["source_dtype"], conv["transform"]) == ("float32", "BF16", "squeeze_conv")
    assert len(shown["parameters"]) == 56


def test_a_drafter_with_faults_and_its_repair_by_map(tmp_path, capsys):
    tensors = drafter_tensors()
    tensors["odd.weight"] = tensors.pop("injection.message.weight")
    folder = str(write_folder(tmp_path / "d", DRAFTER.to_hf(), tensors | {"lm_head.weight": np.zeros(1, np.float32)}))
    assert inspection.main([folder]) == 1
    shown = capsys.readouterr().out
    assert "  FAULT: unknown tensor odd.weight BF16 [10, 6]" in shown
    assert "odd.weight BF16 [10, 6] would fit: choose with --map injection.message.weight=NAME" in shown
    assert "  lm_head.weight ignored: the drafter uses the target's head" in shown
    assert inspection.main([folder, "--json"]) == 1
    assert len(json.loads(capsys.readouterr().out)["faults"]) == 2
    assert inspection.main([folder, "--map", "injection.message.weight=odd.weight"]) == 0
    assert "odd.weight BF16 [10, 6] -> injection.message.weight" in capsys.readouterr().out


def test_what_cannot_be_read_at_all(tmp_path, target, capsys):
    assert inspection.main([str(tmp_path / "none")]) == 1
    assert inspection.main([str(target), "--map", "drafter:fc.weight=x"]) == 1
    config = json.loads((target / "config.json").read_text()) | {"hidden_act": "gelu"}
    (target / "config.json").write_text(json.dumps(config))
    assert inspection.main([str(target)]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("dspine inspect: error:") == 3 and "hidden_act" in printed.err
