"""A target and a drafter that do not belong together are refused before anything is built."""

import dataclasses

import pytest

from dspine_jax.config import ConfigError, DrafterConfig, TargetConfig, check_pair
from tests.configs import DRAFTER, TARGET

TARGET_CONFIG = TargetConfig.from_hf(TARGET)
DRAFTER_CONFIG = DrafterConfig.from_hf(DRAFTER)
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128], "fmt": "e4m3"}


def faults_of(target=TARGET_CONFIG, drafter=DRAFTER_CONFIG, **kwargs):
    with pytest.raises(ConfigError) as caught:
        check_pair(target, drafter, **kwargs)
    return caught.value.faults


def test_the_released_pair_fits():
    check_pair(TARGET_CONFIG, DRAFTER_CONFIG)
    check_pair(TARGET_CONFIG, DRAFTER_CONFIG, block_size=16)


@pytest.mark.parametrize(("field", "value"), [("hidden_size", 4096), ("vocab_size", 248400), ("num_target_layers", 65)])
def test_one_disagreement(field, value):
    (fault,) = faults_of(drafter=dataclasses.replace(DRAFTER_CONFIG, **{field: value}))
    assert fault.startswith(field) and str(value) in fault


def test_taps_lie_below_the_targets_last_layer():
    target = dataclasses.replace(TARGET_CONFIG, num_hidden_layers=62, layer_types=TARGET_CONFIG.layer_types[:62])
    layers, taps = faults_of(target)
    assert layers.startswith("num_target_layers") and "62" in layers and "64" in layers
    assert taps.startswith("target_layer_ids") and "[61]" in taps and "last layer 61" in taps


def test_mask_and_candidates_lie_in_the_targets_vocabulary():
    target = dataclasses.replace(TARGET_CONFIG, vocab_size=8, eos_token_ids=())
    assert [fault.split(":")[0] for fault in faults_of(target)] == [
        "vocab_size",
        "mask_token_id",
        "head_topk",
    ]


@pytest.mark.parametrize("block_size", [8, 32])
def test_only_the_checkpoints_block_size(block_size):
    (fault,) = faults_of(block_size=block_size)
    assert f"got {block_size}" in fault and "wanted 16" in fault


def test_a_quantised_target_with_an_unquantised_head_works():
    check_pair(TARGET_CONFIG, DRAFTER_CONFIG, target_quantization=FP8)
    named = FP8 | {"modules_to_not_convert": ["model.visual", "lm_head"]}
    check_pair(TARGET_CONFIG, DRAFTER_CONFIG, target_quantization=named)


def test_a_quantised_head_is_refused():
    quantization = FP8 | {"modules_to_not_convert": ["model.visual"]}
    (fault,) = faults_of(target_quantization=quantization)
    assert "lm_head" in fault
    tied = dataclasses.replace(TARGET_CONFIG, tie_word_embeddings=True)
    check_pair(tied, DRAFTER_CONFIG, target_quantization=quantization)


def test_another_target_quantisation_is_refused():
    (fault,) = faults_of(target_quantization={"quant_method": "awq", "bits": 4})
    assert "awq" in fault and "fp8" in fault


def test_a_quantised_drafter_is_refused():
    (fault,) = faults_of(drafter_quantization=FP8)
    assert "drafter" in fault and "fp8" in fault


def test_all_faults_come_in_one_message():
    drafter = dataclasses.replace(DRAFTER_CONFIG, hidden_size=4096, num_target_layers=65)
    assert len(faults_of(drafter=drafter, block_size=4, drafter_quantization=FP8)) == 4
