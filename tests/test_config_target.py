"""The strict reading of target configurations."""

import dataclasses

import pytest

from dspine_jax.config import BlockFp8, ConfigError, TargetConfig
from dspine_jax.config.target import IGNORABLE_TEXT, IGNORABLE_WRAPPER
from tests.configs import DELETE, QWEN3_8B, TARGET, with_changes

TEXT_ONLY = TARGET["text_config"]
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128], "fmt": "e4m3"}


def read_text(**changes):
    return TargetConfig.from_hf(with_changes(TEXT_ONLY, changes))


def faults_of(config, generation_config=None):
    with pytest.raises(ConfigError) as caught:
        TargetConfig.from_hf(config, generation_config)
    assert all(fault in str(caught.value) for fault in caught.value.faults)
    return caught.value.faults


def only_fault(config, generation_config=None):
    faults = faults_of(config, generation_config)
    assert len(faults) == 1, faults
    return faults[0]


def test_every_value_of_the_released_config_is_read():
    config = TargetConfig.from_hf(TARGET)
    assert dataclasses.asdict(config) == {
        "model_type": "qwen3_5_text",
        "hidden_size": 5120,
        "intermediate_size": 17408,
        "num_hidden_layers": 64,
        "layer_types": (("linear_attention",) * 3 + ("full_attention",)) * 16,
        "num_attention_heads": 24,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "rope_theta": 1e7,
        "partial_rotary_factor": 0.25,
        "rms_norm_eps": 1e-6,
        "attn_output_gate": True,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 48,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "vocab_size": 248320,
        "max_position_embeddings": 262144,
        "tie_word_embeddings": False,
        "eos_token_ids": (248044,),
        "dtype": "bfloat16",
    }
    assert config.rotary_dim == 64


class TestPlainModels:
    def test_every_value_of_the_released_config_is_read(self):
        config = TargetConfig.from_hf(QWEN3_8B, {"eos_token_id": [151645, 151643]})
        assert dataclasses.asdict(config) == {
            "model_type": "qwen3",
            "hidden_size": 4096,
            "intermediate_size": 12288,
            "num_hidden_layers": 36,
            "layer_types": ("full_attention",) * 36,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "rope_theta": 1e6,
            "partial_rotary_factor": 1.0,
            "rms_norm_eps": 1e-6,
            "attn_output_gate": False,
            "linear_num_key_heads": 0,
            "linear_num_value_heads": 0,
            "linear_key_head_dim": 0,
            "linear_value_head_dim": 0,
            "linear_conv_kernel_dim": 0,
            "vocab_size": 151936,
            "max_position_embeddings": 40960,
            "tie_word_embeddings": False,
            "eos_token_ids": (151645, 151643),
            "dtype": "bfloat16",
        }
        assert config.rotary_dim == 128 and not config.norms_are_offsets

    def test_what_is_written_reads_the_same(self):
        config = TargetConfig.from_hf(QWEN3_8B)
        assert TargetConfig.from_hf(config.to_hf()) == config

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("use_sliding_window", True),
            ("sliding_window", 4096),
            ("attention_bias", True),
            ("rope_scaling", {"rope_type": "yarn", "factor": 4.0}),
            ("layer_types", ["linear_attention"] * 36),
            ("layer_types", ["full_attention"] * 35),
            ("attn_output_gate", True),
            ("shiny", 1),
        ],
    )
    def test_anything_else_is_refused(self, key, value):
        assert key.split("_")[0] in only_fault(with_changes(QWEN3_8B, {key: value}))

    def test_linear_layers_have_sizes(self):
        with pytest.raises(ConfigError, match="layer_types: has linear_attention layers"):
            dataclasses.replace(TargetConfig.from_hf(TARGET), linear_key_head_dim=0)


def test_the_text_only_form_reads_the_same():
    assert TargetConfig.from_hf(TEXT_ONLY) == TargetConfig.from_hf(TARGET)


def test_to_hf_round_trip():
    config = TargetConfig.from_hf(TARGET, {"eos_token_id": [248046, 248044]})
    assert TargetConfig.from_hf(config.to_hf()) == config
    assert config.to_hf()["model_type"] == "qwen3_5_text"


@pytest.mark.parametrize("key", sorted(TEXT_ONLY))
def test_each_key_is_needed_or_has_a_stated_reason(key):
    """Without a key the config is refused, or reads the same for a reason that stands here or in the code."""
    stands_twice = {"layer_types", "full_attention_interval", "partial_rotary_factor"}
    has_one_implemented_value = {"attn_output_gate", "output_gate_type", "mamba_ssm_dtype"}
    config = with_changes(TEXT_ONLY, {key: DELETE})
    if key in IGNORABLE_TEXT or key in stands_twice or key in has_one_implemented_value:
        assert TargetConfig.from_hf(config) == TargetConfig.from_hf(TEXT_ONLY)
    else:
        assert "missing" in faults_of(config)[0]


def test_ignored_keys_have_reasons_and_none_is_read():
    for table, config in ((IGNORABLE_TEXT, TEXT_ONLY), (IGNORABLE_WRAPPER, TARGET)):
        assert all(reason for reason in table.values())
        nonsense = with_changes(config, dict.fromkeys(table, "nonsense"))
        assert TargetConfig.from_hf(nonsense) == TargetConfig.from_hf(TARGET)


@pytest.mark.parametrize("place", ["", "text_config.", "text_config.rope_parameters."])
def test_an_unknown_key_is_refused_at_every_level(place):
    assert f"{place}shiny" in only_fault(with_changes(TARGET, {place + "shiny": 3}))


def test_all_faults_come_in_one_message():
    changes = {
        "hidden_size": True,
        "shiny": 1,
        "head_dim": DELETE,
        "num_key_value_heads": 5,
        "rms_norm_eps": 0,
        "hidden_act": "gelu",
        "eos_token_id": 248320,
    }
    faults = faults_of(with_changes(TEXT_ONLY, changes))
    assert sorted(fault.split(":")[0] for fault in faults) == [
        "eos_token_id",
        "head_dim",
        "hidden_act",
        "hidden_size",
        "num_attention_heads",
        "rms_norm_eps",
        "shiny",
    ]


def test_a_multi_token_prediction_block_is_no_decoder_layer():
    config = read_text(mtp_num_hidden_layers=3)
    assert config.num_hidden_layers == len(config.layer_types) == 64


class TestRope:
    @pytest.mark.parametrize(("nested", "flat"), [(5e5, None), (None, 5e5), (5e5, 5e5)], ids=["nested", "flat", "both"])
    def test_theta_is_read_from_where_it_stands(self, nested, flat):
        changes = {
            "rope_parameters.rope_theta": DELETE if nested is None else nested,
            "rope_theta": flat,
        }
        assert TargetConfig.from_hf(with_changes(TEXT_ONLY, changes)).rope_theta == 5e5

    def test_two_different_thetas_are_refused(self):
        fault = only_fault(with_changes(TEXT_ONLY, {"rope_theta": 10000}))
        assert "rope_parameters.rope_theta and rope_theta disagree" in fault
        assert "10000000.0" in fault and "10000.0" in fault

    def test_no_theta_is_refused(self):
        assert "rope_theta" in only_fault(with_changes(TEXT_ONLY, {"rope_parameters.rope_theta": DELETE}))

    def test_partial_rotary_factor_flat_nested_or_different(self):
        flat = {"rope_parameters.partial_rotary_factor": DELETE}
        assert TargetConfig.from_hf(with_changes(TEXT_ONLY, flat)).rotary_dim == 64
        assert "disagree" in only_fault(with_changes(TEXT_ONLY, {"partial_rotary_factor": 0.5}))

    def test_null_rope_scaling_is_plain_rope(self):
        assert read_text(rope_scaling=None) == TargetConfig.from_hf(TEXT_ONLY)

    @pytest.mark.parametrize("kind", ["yarn", "dynamic", "unheard-of"])
    @pytest.mark.parametrize("key", ["rope_type", "type"])
    def test_other_scalings_are_refused_by_name(self, kind, key):
        rope = {key: kind, "rope_theta": 1e7, "factor": 4.0, "original_max_position_embeddings": 262144}
        fault = only_fault(with_changes(TEXT_ONLY, {"rope_parameters": rope}))
        assert kind in fault and "default" in fault
        assert kind in only_fault(with_changes(TEXT_ONLY, {"rope_scaling": {key: kind}}))

    def test_mrope_sections_share_out_the_rotated_frequencies(self):
        assert read_text(**{"rope_parameters.mrope_section": [12, 10, 10]}) == TargetConfig.from_hf(TARGET)
        fault = only_fault(with_changes(TEXT_ONLY, {"rope_parameters.mrope_section": [11, 11, 11]}))
        assert "[11, 11, 11]" in fault and "sum 32" in fault

    def test_rotated_width_is_even(self):
        changes = {
            "head_dim": 12,
            "partial_rotary_factor": DELETE,
            "rope_parameters.mrope_section": DELETE,
        }
        assert "rotates 3 of 12" in only_fault(with_changes(TEXT_ONLY, changes))


class TestLayerTypes:
    def test_the_interval_alone_gives_the_schedule(self):
        config = read_text(layer_types=DELETE, num_hidden_layers=7, full_attention_interval=3)
        linear, full = "linear_attention", "full_attention"
        assert config.layer_types == (linear, linear, full, linear, linear, full, linear)

    def test_a_schedule_that_differs_from_the_interval_is_refused(self):
        fault = only_fault(with_changes(TEXT_ONLY, {"full_attention_interval": 2}))
        assert "full_attention_interval 2" in fault and "layer 1" in fault

    def test_neither_is_refused(self):
        changes = {"layer_types": DELETE, "full_attention_interval": DELETE}
        assert "full_attention_interval" in only_fault(with_changes(TEXT_ONLY, changes))

    def test_one_entry_per_layer(self):
        fault = only_fault(with_changes(TEXT_ONLY, {"num_hidden_layers": 63}))
        assert "64" in fault and "63" in fault

    def test_unknown_layer_kind(self):
        assert "mamba" in faults_of(with_changes(TEXT_ONLY, {"layer_types": ["mamba"] * 64}))[0]


class TestStopIds:
    @pytest.mark.parametrize(
        ("config_ids", "generation_ids", "union"),
        [
            (5, None, (5,)),
            (5, [5, 7], (5, 7)),
            ([7, 5], 9, (7, 5, 9)),
            (None, 9, (9,)),
            (DELETE, [9], (9,)),
            (None, None, ()),
        ],
    )
    def test_union_of_both_files(self, config_ids, generation_ids, union):
        config = with_changes(TEXT_ONLY, {"eos_token_id": config_ids})
        generation = {"eos_token_id": generation_ids, "temperature": 0.6}
        assert TargetConfig.from_hf(config, generation).eos_token_ids == union

    def test_the_wrapper_counts_too(self):
        assert TargetConfig.from_hf(with_changes(TARGET, {"eos_token_id": 9})).eos_token_ids == (248044, 9)

    def test_nowhere_is_refused(self):
        assert "null" in only_fault(with_changes(TEXT_ONLY, {"eos_token_id": DELETE}), {"top_k": 20})

    @pytest.mark.parametrize("bad", [True, "5", [5, -1], 248320])
    def test_bad_ids(self, bad):
        assert "eos_token_id" in only_fault(with_changes(TEXT_ONLY, {"eos_token_id": bad}))


class TestRefusals:
    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("hidden_act", "gelu"),
            ("attention_bias", True),
            ("attention_bias", 0),
            ("output_gate_type", "sigmoid"),
            ("mamba_ssm_dtype", "bfloat16"),
            ("dtype", "float64"),
            ("torch_dtype", "float16"),
            ("tie_word_embeddings", None),
            ("hidden_size", -1),
            ("hidden_size", 5120.0),
            ("vocab_size", "248320"),
            ("max_position_embeddings", True),
            ("linear_num_value_heads", 50),
            ("num_key_value_heads", 7),
            ("attn_output_gate", 1),
            ("model_type", "qwen3_5_moe_text"),
        ],
    )
    def test_value(self, key, value):
        assert key in only_fault(with_changes(TEXT_ONLY, {key: value}))

    def test_head_dim_is_even(self):
        changes = {"head_dim": 257, "rope_parameters.mrope_section": DELETE}
        assert "head_dim: got 257" in only_fault(with_changes(TEXT_ONLY, changes))

    def test_another_architecture(self):
        fault = only_fault(with_changes(QWEN3_8B, {"model_type": "qwen3_moe"}))
        assert '"qwen3_5_text"' in fault and '"qwen3_moe"' in fault

    def test_a_wrapper_without_a_text_model(self):
        assert "text_config" in only_fault(with_changes(TARGET, {"text_config": DELETE}))

    def test_dtype_at_either_name_and_level(self):
        moved = with_changes(TARGET, {"text_config.dtype": DELETE, "torch_dtype": "float32"})
        assert TargetConfig.from_hf(moved).dtype == "float32"
        assert "disagree" in only_fault(with_changes(TARGET, {"torch_dtype": "float32"}))

    def test_tying_that_differs_between_levels(self):
        assert "disagree" in only_fault(with_changes(TARGET, {"tie_word_embeddings": True}))

    def test_a_directly_built_config_is_checked_too(self):
        good = TargetConfig.from_hf(TARGET)
        with pytest.raises(ConfigError, match="num_key_value_heads 5"):
            dataclasses.replace(good, num_key_value_heads=5)
        with pytest.raises(ConfigError, match="hidden_size: got true"):
            dataclasses.replace(good, hidden_size=True)


class TestQuantization:
    def test_block_scaled_fp8_is_read(self):
        config = with_changes(TARGET, {"quantization_config": FP8 | {"modules_to_not_convert": ["lm_head"]}})
        assert TargetConfig.from_hf(config) == TargetConfig.from_hf(TARGET)
        assert BlockFp8.from_hf(config) == BlockFp8(block_size=(128, 128), unconverted=("lm_head",))
        assert BlockFp8.from_hf(TARGET) is None

    @pytest.mark.parametrize(
        ("change", "named"),
        [
            ({"quant_method": "gptq", "bits": 4}, "gptq"),
            ({"fmt": "e5m2"}, "e5m2"),
            ({"weight_block_size": [128]}, "weight_block_size"),
            ({"weight_block_size": None}, "weight_block_size"),
            ({"shiny": 1}, "shiny"),
            ({"quantize_lm_head": True}, "quantize_lm_head"),
        ],
    )
    def test_anything_else_is_refused(self, change, named):
        for place in ("quantization_config", "text_config.quantization_config"):
            fault = only_fault(with_changes(TARGET, {place: FP8 | change}))
            assert fault.startswith(place) and named in fault
        with pytest.raises(ConfigError, match=named):
            BlockFp8.from_mapping(FP8 | change)
