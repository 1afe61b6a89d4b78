"""Exactly once, both ways: every fault of a checkpoint in one report."""

import dataclasses

import jax.numpy as jnp
import pytest

from dspine_jax.config import BlockFp8
from dspine_jax.hf.names import DRAFTER, TARGET, TIED_HEAD
from dspine_jax.hf.plan import Plan, report, resolve
from dspine_jax.hf.tensor_file import TensorInfo
from dspine_jax.weights import abstract_drafter, abstract_target
from tests.checkpoints import DRAFTER as DRAFTER_CONFIG
from tests.checkpoints import TARGET as TARGET_CONFIG
from tests.checkpoints import target_tensors

PARAMETERS = abstract_target(TARGET_CONFIG, jnp.dtype("bfloat16"))
Q_PROJ = "model.layers.3.self_attn.q_proj.weight"
BLOCK = BlockFp8(block_size=(16, 16), unconverted=None)


def listing(prefix: str = "model.") -> dict[str, TensorInfo]:
    return {
        name: TensorInfo(dtype="F32" if value.dtype.itemsize == 4 else "BF16", shape=value.shape)
        for name, value in target_tensors(prefix=prefix).items()
    }


def plan(tensors: dict[str, TensorInfo], **arguments) -> Plan:
    return resolve(TARGET, PARAMETERS, tensors, **arguments)


def fp8(tensors: dict[str, TensorInfo], name: str, scale: tuple[int, ...] | None) -> dict[str, TensorInfo]:
    changed = tensors | {name: dataclasses.replace(tensors[name], dtype="F8_E4M3")}
    return changed if scale is None else changed | {f"{name}_scale_inv": TensorInfo(dtype="F32", shape=scale)}


def test_all_faults_stand_in_one_report():
    tensors = listing()
    del tensors["model.norm.weight"]
    tensors["model.layers.0.mlp.gate_proj.bias"] = TensorInfo(dtype="BF16", shape=(56,))
    tensors["model.embed_tokens.weight"] = TensorInfo(dtype="BF16", shape=(96, 80))
    tensors["model.language_model.layers.1.mlp.up_proj.weight"] = TensorInfo(dtype="BF16", shape=(56, 40))
    tensors["model.layers.2.input_layernorm.weight"] = TensorInfo(dtype="I8", shape=(40,))
    text = report("target", "here", plan(tensors).faults)
    assert text.startswith("target checkpoint here: 5 faults")
    assert "unknown tensor model.layers.0.mlp.gate_proj.bias BF16 [56]" in text
    assert "missing: nothing fills norm.weight [40]" in text
    assert "embed_tokens.weight: tensor model.embed_tokens.weight has shape [96, 80], the config wants [96, 40]" in text
    assert "layers.1.mlp.up_proj.weight is filled twice" in text
    assert "model.layers.2.input_layernorm.weight is I8" in text


def test_a_drafter_of_another_width_gives_every_shape_in_one_report():
    wide = dataclasses.replace(DRAFTER_CONFIG, hidden_size=2 * DRAFTER_CONFIG.hidden_size)
    stored = abstract_drafter(wide, jnp.dtype("bfloat16"))
    tensors = {name: TensorInfo(dtype="BF16", shape=leaf.shape) for name, leaf in stored.items()}
    made = resolve(DRAFTER, abstract_drafter(DRAFTER_CONFIG, jnp.dtype("bfloat16")), tensors)
    different = sum(80 in leaf.shape or 160 in leaf.shape for leaf in stored.values())
    assert len(made.faults) == different > 30
    assert any("fc.weight has shape [80, 160], the config wants [40, 80]" in fault for fault in made.faults)


def test_a_convolution_without_its_middle_dimension_is_refused():
    tensors = listing()
    name = "model.layers.0.linear_attn.conv1d.weight"
    channels, _, kernel = tensors[name].shape
    tensors[name] = TensorInfo(dtype="BF16", shape=(channels, kernel))
    (fault,) = plan(tensors).faults
    assert f"has shape [{channels}, {kernel}], the config wants [{channels}, 1, {kernel}]" in fault


def test_block_scaled_weights_take_their_scale():
    made = plan(fp8(listing(), Q_PROJ, (8, 3)), fp8=BLOCK)
    assert made.faults == ()
    entry = next(entry for entry in made.entries if entry.tensor == Q_PROJ)
    assert (entry.transform, entry.scale, entry.block) == (
        "dequantize_block",
        f"{Q_PROJ}_scale_inv",
        (16, 16),
    )
    assert "dequantize_block" not in {other.transform for other in made.entries if other is not entry}


@pytest.mark.parametrize(
    ("name", "scale", "declared", "message"),
    [
        (Q_PROJ, None, BLOCK, f"and its scale {Q_PROJ}_scale_inv is missing"),
        (Q_PROJ, (8, 2), BLOCK, f"{Q_PROJ}_scale_inv has shape [8, 2]"),
        (Q_PROJ, (8, 3), None, "has no quantization_config"),
        ("lm_head.weight", (6, 3), BLOCK, "must be unquantised"),
        ("model.embed_tokens.weight", (6, 3), BLOCK, "must be unquantised"),
    ],
)
def test_faults_of_block_scaled_weights(name, scale, declared, message):
    (fault,) = plan(fp8(listing(), name, scale), fp8=declared).faults
    assert message in fault


def test_a_scale_that_nothing_needs_is_a_fault():
    tensors = listing() | {f"{Q_PROJ}_scale_inv": TensorInfo(dtype="F32", shape=(8, 3))}
    (fault,) = plan(tensors, fp8=BLOCK).faults
    assert f"unexpected scale {Q_PROJ}_scale_inv F32 [8, 3]" in fault


def test_scales_of_ignored_tensors_are_ignored_with_them():
    name = "mtp.layers.0.mlp.gate_proj.weight_scale_inv"
    made = plan(listing() | {name: TensorInfo(dtype="F32", shape=(2, 2))}, fp8=BLOCK)
    assert made.faults == () and name in made.ignored


def test_a_quantised_drafter_tensor_is_refused():
    parameters = abstract_drafter(DRAFTER_CONFIG, jnp.dtype("bfloat16"))
    tensors = {name: TensorInfo(dtype="BF16", shape=leaf.shape) for name, leaf in parameters.items()}
    made = resolve(DRAFTER, parameters, fp8(tensors, "fc.weight", (3, 5)))
    assert len(made.faults) == 1 and "this parameter of the drafter must be unquantised" in made.faults[0]


def test_a_broken_tensor_matters_only_where_it_is_needed():
    tensors = listing()
    del tensors[Q_PROJ]
    broken = {Q_PROJ: "the index places it in s-1", "mtp.fc.weight": "the index places it in s-2"}
    made = plan(tensors, broken=broken)
    (fault,) = made.faults
    assert fault.startswith(f"{Q_PROJ}: the index places it in s-1")
    (warning,) = made.warnings
    assert warning.startswith("mtp.fc.weight: the index places it in s-2; harmless")


def test_a_broken_tensor_of_no_known_name_is_a_fault():
    (fault,) = plan(listing(), broken={"model.extra.weight": "the index places it in s-1"}).faults
    assert "model.extra.weight" in fault


def test_a_broken_scale_is_one_fault():
    made = plan(fp8(listing(), Q_PROJ, None), fp8=BLOCK, broken={f"{Q_PROJ}_scale_inv": "lost"})
    (fault,) = made.faults
    assert fault.startswith(f"{Q_PROJ}_scale_inv: lost")


def test_a_tied_target_needs_no_head_and_ignores_a_copy():
    tied = dataclasses.replace(TARGET_CONFIG, tie_word_embeddings=True)
    parameters = abstract_target(tied, jnp.dtype("bfloat16"))
    assert "lm_head.weight" not in parameters
    made = resolve(TARGET, parameters, listing(), ignored=(TIED_HEAD,))
    assert made.faults == () and "tie_word_embeddings" in made.ignored["lm_head.weight"]
    (fault,) = resolve(TARGET, parameters, listing()).faults
    assert "unknown tensor lm_head.weight" in fault


def test_the_same_parameter_under_two_prefixes_is_a_double_match():
    made = plan(listing() | listing("model.language_model."))
    doubled = [fault for fault in made.faults if "is filled twice" in fault]
    assert len(doubled) == len(made.faults) == len(PARAMETERS) - 1
