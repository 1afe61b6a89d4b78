"""The strict reading of drafter configurations."""

import dataclasses

import pytest

from dspine_jax.config import ConfigError, DrafterConfig
from dspine_jax.config.drafter import ARCHITECTURES, IGNORABLE, default_target_layer_ids
from tests.configs import DELETE, DRAFTER, with_changes

OWN_FIELDS = DRAFTER["dspine_config"]


def read(**changes):
    return DrafterConfig.from_hf(with_changes(DRAFTER, changes))


def only_fault(changes):
    with pytest.raises(ConfigError) as caught:
        DrafterConfig.from_hf(with_changes(DRAFTER, changes))
    assert len(caught.value.faults) == 1, caught.value.faults
    return caught.value.faults[0]


def test_every_value_of_the_released_config_is_read():
    assert dataclasses.asdict(DrafterConfig.from_hf(DRAFTER)) == {
        "hidden_size": 5120,
        "intermediate_size": 17408,
        "num_hidden_layers": 5,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "rope_theta": 1e7,
        "rms_norm_eps": 1e-6,
        "layer_types": ("sliding_attention",) * 5,
        "sliding_window": 8192,
        "is_causal": True,
        "vocab_size": 248320,
        "max_position_embeddings": 262144,
        "block_size": 16,
        "num_target_layers": 64,
        "target_layer_ids": (1, 16, 31, 46, 61),
        "mask_token_id": 248070,
        "transfer_dim": 1024,
        "message_dim": 512,
        "head_topk": 16,
        "dtype": "bfloat16",
    }


def test_to_hf_round_trip():
    config = DrafterConfig.from_hf(DRAFTER)
    assert DrafterConfig.from_hf(config.to_hf()) == config
    mixed = dataclasses.replace(
        config,
        layer_types=("full_attention", *("sliding_attention",) * 4),
        sliding_window=16,
        is_causal=None,
        target_layer_ids=(0, 3),
    )
    assert DrafterConfig.from_hf(mixed.to_hf()) == mixed
    full = dataclasses.replace(config, layer_types=("full_attention",) * 5, sliding_window=None)
    assert DrafterConfig.from_hf(full.to_hf()) == full


@pytest.mark.parametrize("key", sorted(DRAFTER))
def test_each_key_is_needed_or_has_a_stated_reason(key):
    """Without a key the config is refused, or a reason stands here or in the code."""
    changed = with_changes(DRAFTER, {key: DELETE})
    if key in IGNORABLE or key in ("use_sliding_window", "rope_scaling"):
        assert DrafterConfig.from_hf(changed) == DrafterConfig.from_hf(DRAFTER)
    elif key == "is_causal":
        assert DrafterConfig.from_hf(changed).is_causal is None
    elif key == "layer_types":
        fault = only_fault({key: DELETE})
        assert "layer_types" in fault and "use_sliding_window" in fault
    else:
        with pytest.raises(ConfigError, match=r"missing|got null"):
            DrafterConfig.from_hf(changed)


def test_ignored_keys_have_reasons_and_none_is_read():
    assert all(IGNORABLE.values())
    assert read(**dict.fromkeys(IGNORABLE, "nonsense")) == DrafterConfig.from_hf(DRAFTER)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_accepted_architecture_names(name):
    assert read(architectures=[name]) == DrafterConfig.from_hf(DRAFTER)


@pytest.mark.parametrize("names", [["DFlashDraftModel"], [], None, ["Qwen3DSpineModel", "Other"]])
def test_other_architectures_are_refused_with_the_accepted_names(names):
    fault = only_fault({"architectures": names})
    assert all(name in fault for name in ARCHITECTURES)


def test_all_faults_come_in_one_message():
    changes = {
        "head_dim": DELETE,
        "block_size": 0,
        "dspine_config.transfer_dim": 1.5,
        "dspine_config.shiny": 1,
        "num_key_value_heads": 5,
        "quantization_config": {"quant_method": "fp8"},
    }
    with pytest.raises(ConfigError) as caught:
        read(**changes)
    assert sorted(fault.split(":")[0] for fault in caught.value.faults) == [
        "block_size",
        "dspine_config.shiny",
        "dspine_config.transfer_dim",
        "head_dim",
        "num_attention_heads",
        "quantization_config",
    ]


class TestPlaces:
    @pytest.mark.parametrize("section", ["dspine_config", "dflash_config", None])
    def test_own_fields_nested_or_at_the_top(self, section):
        own = OWN_FIELDS | {"block_size": 16, "num_target_layers": 64}
        bare = with_changes(DRAFTER, dict.fromkeys(("dspine_config", "block_size", "num_target_layers"), DELETE))
        config = bare | (own if section is None else {section: own})
        assert DrafterConfig.from_hf(config) == DrafterConfig.from_hf(DRAFTER)

    @pytest.mark.parametrize("field", sorted(OWN_FIELDS))
    def test_each_field_may_stand_anywhere(self, field):
        changes = {f"dspine_config.{field}": DELETE, "dflash_config": {field: OWN_FIELDS[field]}}
        assert read(**changes) == DrafterConfig.from_hf(DRAFTER)

    def test_places_that_disagree_are_refused(self):
        fault = only_fault({"dspine_config.block_size": 8})
        assert "dspine_config.block_size and block_size disagree: got 8 and 16" in fault
        fault = only_fault({"dflash_config": {"mask_token_id": 7}})
        assert "dspine_config.mask_token_id and dflash_config.mask_token_id" in fault

    def test_a_field_of_another_drafter_is_refused(self):
        assert "conv_kernel_size" in only_fault({"dflash_config": {"conv_kernel_size": 3}})

    def test_a_mask_string_does_not_replace_the_id(self):
        changes = {"dspine_config.mask_token_id": DELETE, "dspine_config.mask_token": "<|MASK|>"}
        assert "mask_token_id" in only_fault(changes)

    def test_is_causal_may_stand_in_text_config(self):
        assert read(is_causal=DELETE, text_config={"is_causal": False}).is_causal is False
        assert "disagree" in only_fault({"text_config": {"is_causal": False}})
        assert "text_config.shiny" in only_fault({"text_config": {"shiny": 1}})


class TestRope:
    @pytest.mark.parametrize(("nested", "flat"), [(5e5, None), (None, 5e5), (5e5, 5e5)], ids=["nested", "flat", "both"])
    def test_theta_is_read_from_where_it_stands(self, nested, flat):
        rope = {"rope_type": "default"} | ({} if nested is None else {"rope_theta": nested})
        assert read(rope_parameters=rope, rope_theta=DELETE if flat is None else flat).rope_theta == 5e5

    def test_two_different_thetas_are_refused(self):
        assert "disagree" in only_fault({"rope_parameters": {"rope_theta": 10000.0}})

    def test_no_theta_is_refused(self):
        assert "rope_theta" in only_fault({"rope_theta": DELETE})

    @pytest.mark.parametrize("kind", ["yarn", "unheard-of"])
    def test_other_scalings_are_refused_by_name(self, kind):
        assert kind in only_fault({"rope_scaling": {"rope_type": kind, "factor": 4.0}})

    def test_whole_heads_rotate(self):
        assert read(partial_rotary_factor=1) == DrafterConfig.from_hf(DRAFTER)
        assert "partial_rotary_factor" in only_fault({"partial_rotary_factor": 0.25})


class TestLayerTypes:
    def test_absent_means_full_attention(self):
        config = read(layer_types=DELETE, use_sliding_window=False, sliding_window=None)
        assert config.layer_types == ("full_attention",) * 5
        assert config.sliding_window is None

    def test_one_entry_per_layer(self):
        assert "num_hidden_layers is 4" in only_fault({"num_hidden_layers": 4})

    def test_a_sliding_layer_needs_a_window(self):
        assert "sliding_window" in only_fault({"sliding_window": None})
        assert "sliding_window" in only_fault({"sliding_window": DELETE})

    def test_the_window_covers_a_block(self):
        assert read(sliding_window=16).sliding_window == 16
        assert "at least block_size 16" in only_fault({"sliding_window": 15})

    def test_a_switched_off_window_contradicts_sliding_layers(self):
        assert "use_sliding_window" in only_fault({"use_sliding_window": False})


class TestTargetLayerIds:
    @pytest.mark.parametrize(
        ("draft_layers", "target_layers", "ids"),
        [
            (5, 64, (1, 16, 31, 46, 61)),
            (1, 64, (32,)),
            (5, 36, (1, 9, 17, 25, 33)),
            # 1 + 0.5 and 1 + 1.5 both go to the even 2.
            (3, 5, (1, 2, 2)),
            (5, 6, (1, 2, 2, 2, 3)),
        ],
    )
    def test_the_default_rounds_halves_to_even(self, draft_layers, target_layers, ids):
        assert default_target_layer_ids(draft_layers, target_layers) == ids

    def test_absent_ids_take_the_default(self):
        config = read(**{"dspine_config.target_layer_ids": DELETE, "num_target_layers": 65})
        assert config.target_layer_ids == (1, 16, 32, 47, 62)

    @pytest.mark.parametrize("ids", [[1, 16, 16], [16, 1], [1, 63], [64], [-1, 3], [], [True, 2], "1", [1.0]])
    def test_bad_ids(self, ids):
        assert "target_layer_ids" in only_fault({"dspine_config.target_layer_ids": ids})


class TestRefusals:
    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("hidden_act", "gelu"),
            ("attention_bias", True),
            ("model_type", "llama"),
            ("head_dim", DELETE),
            ("head_dim", 127),
            ("num_key_value_heads", 5),
            ("block_size", 1),
            ("block_size", True),
            ("dspine_config.mask_token_id", 248320),
            ("dspine_config.mask_token_id", -1),
            ("dspine_config.head_topk", 248321),
            ("dspine_config.transfer_dim", 0),
            ("dspine_config.message_dim", "512"),
            ("dtype", "int8"),
            ("quantization_config", {"quant_method": "fp8"}),
            ("shiny", 1),
        ],
    )
    def test_value(self, key, value):
        assert key.rpartition(".")[2] in only_fault({key: value})

    def test_a_directly_built_config_is_checked_too(self):
        good = DrafterConfig.from_hf(DRAFTER)
        with pytest.raises(ConfigError, match="at least block_size 16"):
            dataclasses.replace(good, sliding_window=4)
        with pytest.raises(ConfigError, match="rope_theta"):
            dataclasses.replace(good, rope_theta=float("nan"))


def test_the_form_that_specforge_writes():
    """Other names of three fields, and what only training reads."""
    section = OWN_FIELDS
    theirs = DRAFTER | {
        "architectures": ["DSpineDraftModel"],
        "dflash_config": {name: section[name] for name in ("mask_token_id", "target_layer_ids")},
        "dspine_config": {
            "transfer_rank": section["transfer_dim"],
            "message_size": section["message_dim"],
            "top_k": section["head_topk"],
            "ce_weight": 0.1,
            "replacement_layers": 3,
        },
    }
    assert DrafterConfig.from_hf(theirs) == DrafterConfig.from_hf(DRAFTER)
    theirs["dspine_config"]["transfer_dim"] = 7
    with pytest.raises(ConfigError, match="disagree"):
        DrafterConfig.from_hf(theirs)
