"""A drafter on a plain `qwen3` target: full attention only, norms as factors, no gate."""

import numpy as np
import pytest

from convert import cli, inspection
from dspine_jax.generate import generate, generate_plain
from dspine_jax.hf.pair import read_pair_hf
from dspine_jax.load import load
from dspine_jax.pair import build_pair
from tests.checkpoints import drafter_tensors, expected_flat, flat_equal, target_tensors, write_folder, write_pair
from tests.tiny import random_drafter, random_target, tiny_drafter_config, tiny_plain_config

TARGET = tiny_plain_config()
DRAFTER = tiny_drafter_config(TARGET)


def test_speculative_equals_plain():
    pair = build_pair(TARGET, DRAFTER, random_target(TARGET, 1), random_drafter(DRAFTER, 2))
    rng = np.random.default_rng(3)
    prompts = [rng.integers(0, TARGET.vocab_size, length).tolist() for length in (1, 65, 20)]
    ours = generate(pair, prompts, max_new_tokens=40, stop_token_ids=())
    plain = generate_plain(pair, prompts, max_new_tokens=40, stop_token_ids=())
    for got, want in zip(ours.tokens, plain.tokens, strict=True):
        assert len(want) == 40 and got.tolist() == want.tolist()


def test_conversion(tmp_path):
    target, draft = write_pair(tmp_path, target=TARGET, drafter=DRAFTER)
    assert cli.main(["--target", str(target), "--draft", str(draft), "--out", str(tmp_path / "out")]) == 0
    config, _, flat, _ = read_pair_hf(target=target, draft=draft)
    assert config == TARGET and flat_equal(flat, expected_flat(TARGET, 1))
    assert load(tmp_path / "out").target_config == TARGET


def test_a_drafter_as_specforge_exports_it(tmp_path):
    """Its names of the codes and the bias, float32 codes, and a flag that is no weight."""
    renamed = {"injection.gate_bias": "injection.bias", "injection.codebook.weight": "transfer_codes"}
    tensors = {renamed.get(name, name): value for name, value in drafter_tensors(DRAFTER).items()}
    tensors["transfer_ready"] = np.array(True)
    own = DRAFTER.to_hf()["dspine_config"]
    names = {"transfer_dim": "transfer_rank", "message_dim": "message_size", "head_topk": "top_k"}
    section = {names.get(name, name): value for name, value in own.items()}
    config = DRAFTER.to_hf() | {"architectures": ["DSpineDraftModel"], "dspine_config": section}
    draft = write_folder(tmp_path / "draft", config, tensors)
    target, _ = write_pair(tmp_path, target=TARGET, drafter=DRAFTER)
    _, got, _, flat = read_pair_hf(target=target, draft=draft)
    assert got == DRAFTER and flat_equal(flat, expected_flat(DRAFTER, 2))


def test_weights_of_the_other_architecture_are_refused(tmp_path, capsys):
    tensors = target_tensors(TARGET) | {"model.layers.0.linear_attn.A_log": np.zeros(6, np.float32)}
    target = write_folder(tmp_path / "t", TARGET.to_hf(), tensors)
    draft = write_pair(tmp_path / "pair", target=TARGET, drafter=DRAFTER)[1]
    assert cli.main(["--target", str(target), "--draft", str(draft), "--out", str(tmp_path / "out")]) == 1
    assert "linear_attn.A_log" in capsys.readouterr().err


@pytest.mark.parametrize("which", ["target", "draft"])
def test_inspection_knows_which_model_it_is(tmp_path, capsys, which):
    folders = dict(zip(("target", "draft"), write_pair(tmp_path, target=TARGET, drafter=DRAFTER), strict=True))
    assert inspection.main([str(folders[which])]) == 0
    assert ("injection.codebook.weight" in capsys.readouterr().out) == (which == "draft")
