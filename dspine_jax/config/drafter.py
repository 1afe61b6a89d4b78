"""Configuration of the drafter: a DSpine block drafter on a Qwen3 backbone."""

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any, Self

from dspine_jax.config.rope import mrope_fault, read_rope
from dspine_jax.config.rules import head_dim_is_even, key_value_heads_divide, one_type_per_layer
from dspine_jax.config.strict import (
    ABSENT,
    BOOL,
    DTYPE,
    INT_LIST,
    POSITIVE_INT,
    POSITIVE_NUMBER,
    TOKEN_ID,
    ConfigError,
    Kind,
    Source,
    agreed,
    broken_rules,
    check_fields,
    list_of,
    optional,
    show,
)

SLIDING = "sliding_attention"
FULL = "full_attention"

# The released name, and the names under which the same class is exported.
ARCHITECTURES = ("Qwen3DSpineModel", "Qwen3DSpineForCausalLM", "DSpineDraftModel")

# Where a drafter's own fields may stand, besides the top level.
SECTIONS = ("dspine_config", "dflash_config")

_FIELDS: dict[str, Kind] = {
    "hidden_size": POSITIVE_INT,
    "intermediate_size": POSITIVE_INT,
    "num_hidden_layers": POSITIVE_INT,
    "num_attention_heads": POSITIVE_INT,
    "num_key_value_heads": POSITIVE_INT,
    "head_dim": POSITIVE_INT,
    "rope_theta": POSITIVE_NUMBER,
    "rms_norm_eps": POSITIVE_NUMBER,
    "layer_types": list_of(SLIDING, FULL),
    "sliding_window": optional(POSITIVE_INT),
    "is_causal": optional(BOOL),
    "vocab_size": POSITIVE_INT,
    "max_position_embeddings": POSITIVE_INT,
    "block_size": POSITIVE_INT,
    "num_target_layers": POSITIVE_INT,
    "target_layer_ids": INT_LIST,
    "mask_token_id": TOKEN_ID,
    "transfer_dim": POSITIVE_INT,
    "message_dim": POSITIVE_INT,
    "head_topk": POSITIVE_INT,
    "dtype": DTYPE,
}

# Fields whose key in config.json has the field's name and one place.
_DIRECT = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "rms_norm_eps",
    "vocab_size",
    "max_position_embeddings",
)

# Fields that may stand in a section or at the top level.
_PLACED = ("block_size", "num_target_layers", "mask_token_id", "transfer_dim", "message_dim", "head_topk")
_SECTION_FIELDS = ("target_layer_ids", "mask_token_id", "transfer_dim", "message_dim", "head_topk")

IGNORABLE: dict[str, str] = {
    "attention_dropout": "no dropout is ever applied",
    "auto_map": "names remote code, which is never run",
    "bos_token_id": "the target's token ids count",
    "eos_token_id": "the target's stop ids count",
    "pad_token_id": "rows have explicit lengths; no token marks padding",
    "initializer_range": "used only to initialise new weights",
    "max_window_layers": "only a default for layer_types, which is read instead",
    "tie_word_embeddings": "the drafter has neither embedding nor head: both are the target's",
    "use_cache": "generation always caches",
    "transformers_version": "records the writer of the file",
}

# What SpecForge, which trains these drafters, calls some of them in `dspine_config`.
_SPECFORGE_NAMES = {"transfer_dim": "transfer_rank", "message_dim": "message_size", "head_topk": "top_k"}

IGNORABLE_SECTION: dict[str, str] = {
    "mask_token": "mask_token_id says which row of the embedding is meant",
    **dict.fromkeys(
        (
            "ce_weight",
            "alignment_weight",
            "alignment_warmup_steps",
            "replacement_layers",
            "replacement_probability",
            "replacement_hold_ratio",
            "replacement_end_ratio",
            "candidate_mass_threshold",
        ),
        "belongs to the training loss",
    ),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class DrafterConfig:
    """Every fact that the drafter's forward pass depends on. All values come from the checkpoint.

    `is_causal` overrides the attention inside a block for all layers; None leaves it to the layer type
    (sliding: causal, full: bidirectional). `sliding_window` counts the query itself.
    """

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rope_theta: float
    rms_norm_eps: float
    layer_types: tuple[str, ...]
    sliding_window: int | None
    is_causal: bool | None
    vocab_size: int
    max_position_embeddings: int
    block_size: int
    num_target_layers: int
    target_layer_ids: tuple[int, ...]
    mask_token_id: int
    transfer_dim: int
    message_dim: int
    head_topk: int
    dtype: str

    def __post_init__(self) -> None:
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        faults = check_fields(values, _FIELDS) or broken_rules(values, _RULES)
        if faults:
            raise ConfigError("drafter config", faults)

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Self:
        """Read the mapping of the drafter's `config.json`.

        The drafter's own fields may stand in `dspine_config`, in `dflash_config` or at the top level;
        values that stand in several places must be equal. A missing `layer_types` means full attention
        everywhere, a missing `target_layer_ids` the default below. Raises ConfigError, which lists every
        fault.
        """
        source = Source(config)
        source.expect("model_type", "qwen3", why="No other backbone is implemented.", required=True)
        source.expect(
            "architectures",
            *([name] for name in ARCHITECTURES),
            why="Only DSpine drafters are implemented.",
            required=True,
        )
        values = _read_backbone(source)
        values |= _read_drafting(source, values["num_hidden_layers"])
        source.close(IGNORABLE)
        faults = source.faults + broken_rules(values, (*_RULES, _mrope_shares_frequencies))
        if faults:
            raise ConfigError("drafter config", faults)
        del values["mrope_section"]
        return cls(**values)

    def to_hf(self) -> dict[str, Any]:
        """The `config.json` mapping; `from_hf(to_hf())` gives an equal config."""
        return {
            "architectures": [ARCHITECTURES[0]],
            "model_type": "qwen3",
            **{name: getattr(self, name) for name in _DIRECT},
            "layer_types": list(self.layer_types),
            # Qwen3 readers drop the window without this switch.
            "use_sliding_window": SLIDING in self.layer_types,
            "sliding_window": self.sliding_window,
            "is_causal": self.is_causal,
            "rope_parameters": {"rope_type": "default", "rope_theta": self.rope_theta},
            "hidden_act": "silu",
            "attention_bias": False,
            "block_size": self.block_size,
            "num_target_layers": self.num_target_layers,
            "dtype": self.dtype,
            "dspine_config": {name: getattr(self, name) for name in _SECTION_FIELDS}
            | {"target_layer_ids": list(self.target_layer_ids)},
        }


def default_target_layer_ids(num_hidden_layers: int, num_target_layers: int) -> tuple[int, ...]:
    """The tap ids of a drafter that lists none: spread from layer 1 to the fourth layer from the end.

    One draft layer taps the middle; otherwise id i is round(1 + i (T - 4) / (n - 1)), halves rounded to even.
    """
    if num_hidden_layers == 1:
        return (num_target_layers // 2,)
    step = (num_target_layers - 4) / (num_hidden_layers - 1)
    return tuple(round(1 + i * step) for i in range(num_hidden_layers))


def _read_backbone(source: Source) -> dict[str, Any]:
    values = {name: source.take(name, _FIELDS[name]) for name in _DIRECT}
    values["dtype"] = agreed([(source, "dtype"), (source, "torch_dtype")], DTYPE)
    values["rope_theta"], partial, values["mrope_section"] = read_rope(source, default_partial=1.0)
    if partial is not ABSENT and partial != 1.0:
        source.fault("partial_rotary_factor", f"got {partial}; wanted 1: a drafter rotates whole heads.")
    source.expect("hidden_act", "silu", why="The MLP is SwiGLU with SiLU.", required=True)
    source.expect("attention_bias", False, why="Projections with biases are not implemented.", required=True)
    source.expect("quantization_config", None, why="The drafter must be unquantised; use its BF16 export.")
    values |= _read_attention(source, values["num_hidden_layers"])
    return values


def _read_attention(source: Source, num_hidden_layers: Any) -> dict[str, Any]:
    layer_types = source.take("layer_types", optional(_FIELDS["layer_types"]), default=None)
    window = source.take("sliding_window", _FIELDS["sliding_window"], default=None)
    use_window = source.take("use_sliding_window", optional(BOOL), default=None)
    if layer_types is None:
        if use_window is True:
            source.fault("layer_types", "missing while use_sliding_window is true; wanted one entry per layer.")
        layer_types = ABSENT if num_hidden_layers is ABSENT else (FULL,) * num_hidden_layers
    elif layer_types is not ABSENT and SLIDING in layer_types and use_window is False:
        source.fault(
            "use_sliding_window",
            f"got false while layer_types has {SLIDING!r} layers; wanted true. "
            "Keep what the weights were trained with.",
        )
    places = [(source, "is_causal")]
    text = source.section("text_config")
    if text is not None:
        places.append((text, "is_causal"))
    is_causal = agreed(places, BOOL, default=None)
    if text is not None:
        text.close({})
    return {"layer_types": layer_types, "sliding_window": window, "is_causal": is_causal}


def _read_drafting(source: Source, num_hidden_layers: Any) -> dict[str, Any]:
    sections = [section for name in SECTIONS if (section := source.section(name)) is not None]
    levels = [*sections, source]
    names = {name: (name, *(alias for ours, alias in _SPECFORGE_NAMES.items() if ours == name)) for name in _PLACED}
    values = {
        name: agreed([(level, key) for key in keys for level in levels], _FIELDS[name]) for name, keys in names.items()
    }
    ids = agreed([(level, "target_layer_ids") for level in levels], INT_LIST, default=None)
    if ids is None:
        num_target_layers = values["num_target_layers"]
        known = ABSENT not in (num_hidden_layers, num_target_layers)
        ids = default_target_layer_ids(num_hidden_layers, num_target_layers) if known else ABSENT
    values["target_layer_ids"] = ids
    for section in sections:
        section.close(IGNORABLE_SECTION)
    return values


def _window_covers_block(layer_types: tuple[str, ...], sliding_window: int | None, block_size: int) -> str | None:
    if SLIDING not in layer_types or (sliding_window is not None and sliding_window >= block_size):
        return None
    return (
        f"sliding_window: got {show(sliding_window)}; wanted at least block_size {block_size}, "
        f"since layer_types has {SLIDING!r} layers."
    )


def _block_has_proposals(block_size: int) -> str | None:
    return None if block_size > 1 else f"block_size: got {block_size}; wanted at least 2: the anchor and one proposal."


def _taps_increase(target_layer_ids: tuple[int, ...]) -> str | None:
    if all(a < b for a, b in itertools.pairwise(target_layer_ids)):
        return None
    return f"target_layer_ids: got {list(target_layer_ids)}; wanted strictly increasing ids."


def _taps_below_last_layer(target_layer_ids: tuple[int, ...], num_target_layers: int) -> str | None:
    outside = [i for i in target_layer_ids if not 0 <= i < num_target_layers - 1]
    if not outside:
        return None
    return (
        f"target_layer_ids: got {outside} among them; wanted ids from 0 to {num_target_layers - 2}, "
        f"below the last of num_target_layers {num_target_layers}."
    )


def _mask_in_vocabulary(mask_token_id: int, vocab_size: int) -> str | None:
    if mask_token_id < vocab_size:
        return None
    return f"mask_token_id: got {mask_token_id}; wanted an id below vocab_size {vocab_size}."


def _candidates_in_vocabulary(head_topk: int, vocab_size: int) -> str | None:
    if head_topk <= vocab_size:
        return None
    return f"head_topk: got {head_topk}; wanted at most vocab_size {vocab_size}."


def _mrope_shares_frequencies(mrope_section: tuple[int, ...] | None, head_dim: int) -> str | None:
    return mrope_fault(mrope_section, head_dim)


_RULES = (
    one_type_per_layer,
    key_value_heads_divide,
    head_dim_is_even,
    _window_covers_block,
    _block_has_proposals,
    _taps_increase,
    _taps_below_last_layer,
    _mask_in_vocabulary,
    _candidates_in_vocabulary,
)
