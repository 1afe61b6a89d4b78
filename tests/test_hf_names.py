"""The name tables against the names and shapes that transformers gives the full-size target."""

import gzip
import json
from pathlib import Path

import jax.numpy as jnp
import pytest

from dspine_jax.config import DrafterConfig, TargetConfig
from dspine_jax.hf.names import DRAFTER, TARGET
from dspine_jax.hf.plan import resolve
from dspine_jax.hf.tensor_file import TensorInfo
from dspine_jax.weights import abstract_drafter, abstract_target
from tests import configs, peers

GOLDEN = Path(__file__).parent / "golden"
NAMES = GOLDEN / "qwen3_8_27b_names.json.gz"
LISTED: dict[str, list[int]] = json.loads(gzip.decompress(NAMES.read_bytes()))["tensors"]
PARAMETERS = abstract_target(TargetConfig.from_hf(configs.TARGET), jnp.dtype("bfloat16"))

MTP = [
    *("fc", "norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"),
    *(f"layers.0.self_attn.{part}" for part in ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm")),
    *(f"layers.0.mlp.{part}_proj" for part in ("gate", "up", "down")),
    *("layers.0.input_layernorm", "layers.0.post_attention_layernorm"),
]


def checkpoint() -> dict[str, TensorInfo]:
    """All 1199 tensors of the published checkpoint; transformers builds no multi-token-prediction layer."""
    mtp = {f"mtp.{name}.weight": [1] for name in MTP}
    return {name: TensorInfo(dtype="BF16", shape=tuple(shape)) for name, shape in (LISTED | mtp).items()}


def test_every_listed_tensor_is_used_once_or_ignored():
    tensors = checkpoint()
    plan = resolve(TARGET, PARAMETERS, tensors)
    assert plan.faults == () and plan.warnings == ()
    assert (len(tensors), len(plan.entries), len(plan.ignored)) == (1199, 851, 348)
    assert sum(name.startswith("model.visual.") for name in plan.ignored) == 333
    assert sum(name.startswith("mtp.") for name in plan.ignored) == 15
    assert {entry.parameter for entry in plan.entries} == PARAMETERS.keys()
    assert len({entry.tensor for entry in plan.entries}) == 851


def test_text_only_names_fill_the_same_parameters():
    tensors = {
        name.replace("model.language_model.", "model."): info
        for name, info in checkpoint().items()
        if not name.startswith(("model.visual.", "mtp."))
    }
    plan = resolve(TARGET, PARAMETERS, tensors)
    assert plan.faults == () and len(plan.entries) == 851 and not plan.ignored


def test_the_golden_list_is_what_transformers_says_now(tmp_path):
    peers.run(GOLDEN / "make_names.py", tmp_path / "names.json.gz")
    assert json.loads(gzip.decompress((tmp_path / "names.json.gz").read_bytes()))["tensors"] == LISTED


def test_each_parameter_has_one_row_in_its_table():
    drafter = abstract_drafter(DrafterConfig.from_hf(configs.DRAFTER), jnp.dtype("bfloat16"))
    for table, parameters in ((TARGET, PARAMETERS), (DRAFTER, drafter)):
        used = {table.row(name).name for name in parameters}
        assert used == {row.name for row in table.rows}
    with pytest.raises(LookupError, match="0 rows"):
        TARGET.row("layers.00.input_layernorm.weight")


@pytest.mark.parametrize(
    ("tensor", "parameter"),
    [
        ("fc.weight", "fc.weight"),
        ("model.fc.weight", "fc.weight"),
        ("encoder.fc.weight", "fc.weight"),
        ("model.encoder.fc.weight", "fc.weight"),
        ("encoder.output_norm_enc.weight", "hidden_norm.weight"),
        ("model.layers.4.self_attn.q_norm.weight", "layers.4.self_attn.q_norm.weight"),
    ],
)
def test_drafter_spellings(tensor, parameter):
    assert DRAFTER.parameter(tensor) == parameter


@pytest.mark.parametrize(
    ("table", "tensor"),
    [
        (TARGET, "mtp.fc.weight"),
        (TARGET, "model.visual.pos_embed.weight"),
        (TARGET, "model.layers.3.self_attn.rotary_emb.inv_freq"),
        (DRAFTER, "embed_tokens.weight"),
        (DRAFTER, "model.embed_tokens.weight"),
        (DRAFTER, "lm_head.weight"),
        (DRAFTER, "rotary_emb.inv_freq"),
    ],
)
def test_ignored_families_have_a_reason(table, tensor):
    assert table.ignored_reason(tensor)


@pytest.mark.parametrize("tensor", ["model.mtp_like.weight", "visual.x", "model.visualx.y", "xmtp.fc.weight"])
def test_ignored_families_are_no_substrings(tensor):
    assert TARGET.ignored_reason(tensor) is None
