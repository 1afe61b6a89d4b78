"""Configuration of the target: the text stack of a `qwen3_5` checkpoint, or a plain `qwen3` model."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Self

from dspine_jax.config.quantization import BlockFp8
from dspine_jax.config.rope import mrope_fault, read_rope
from dspine_jax.config.rules import head_dim_is_even, key_value_heads_divide, one_type_per_layer
from dspine_jax.config.strict import (
    ABSENT,
    BOOL,
    DTYPE,
    FRACTION,
    POSITIVE_INT,
    POSITIVE_NUMBER,
    TOKEN_IDS,
    ConfigError,
    Kind,
    Source,
    agreed,
    broken_rules,
    check_fields,
    is_int,
    list_of,
    one_of,
)

LINEAR = "linear_attention"
FULL = "full_attention"
WRAPPER_MODEL_TYPE = "qwen3_5"
TEXT_MODEL_TYPE = "qwen3_5_text"
PLAIN_MODEL_TYPE = "qwen3"  # drafters have it too
PLAIN_ARCHITECTURE = "Qwen3ForCausalLM"

_COUNT = Kind("an integer, 0 or more", lambda v: is_int(v) and v >= 0)
_FIELDS: dict[str, Kind] = {
    "model_type": one_of(TEXT_MODEL_TYPE, PLAIN_MODEL_TYPE),
    "hidden_size": POSITIVE_INT,
    "intermediate_size": POSITIVE_INT,
    "num_hidden_layers": POSITIVE_INT,
    "layer_types": list_of(LINEAR, FULL),
    "num_attention_heads": POSITIVE_INT,
    "num_key_value_heads": POSITIVE_INT,
    "head_dim": POSITIVE_INT,
    "rope_theta": POSITIVE_NUMBER,
    "partial_rotary_factor": FRACTION,
    "rms_norm_eps": POSITIVE_NUMBER,
    "attn_output_gate": BOOL,
    "linear_num_key_heads": _COUNT,
    "linear_num_value_heads": _COUNT,
    "linear_key_head_dim": _COUNT,
    "linear_value_head_dim": _COUNT,
    "linear_conv_kernel_dim": _COUNT,
    "vocab_size": POSITIVE_INT,
    "max_position_embeddings": POSITIVE_INT,
    "tie_word_embeddings": BOOL,
    "eos_token_ids": Kind(
        "a tuple of token ids", lambda v: isinstance(v, tuple) and all(is_int(i) and i >= 0 for i in v)
    ),
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
# The same, of gated delta nets; a plain model has none.
_LINEAR_SIZES = (
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_conv_kernel_dim",
)

IGNORABLE_TEXT: dict[str, str] = {
    "architectures": "model_type decides the architecture",
    "attention_dropout": "no dropout is ever applied",
    "bos_token_id": "prompts are token ids already",
    "pad_token_id": "rows have explicit lengths; no token marks padding",
    "initializer_range": "used only to initialise new weights",
    "mtp_num_hidden_layers": "the multi-token-prediction block is no decoder layer and is not loaded",
    "mtp_use_dedicated_embeddings": "belongs to the multi-token-prediction block",
    "use_cache": "generation always caches",
    "transformers_version": "records the writer of the file",
}

IGNORABLE_PLAIN: dict[str, str] = {
    "attention_dropout": "no dropout is ever applied",
    "bos_token_id": "prompts are token ids already",
    "pad_token_id": "rows have explicit lengths; no token marks padding",
    "initializer_range": "used only to initialise new weights",
    "max_window_layers": "has a meaning only with use_sliding_window",
    "use_cache": "generation always caches",
    "transformers_version": "records the writer of the file",
}

IGNORABLE_WRAPPER: dict[str, str] = {
    "architectures": "model_type decides the architecture",
    "image_token_id": "text only",
    "video_token_id": "text only",
    "vision_start_token_id": "text only",
    "vision_end_token_id": "text only",
    "vision_config": "the vision tower is not loaded",
    "language_model_only": "only the language model is ever loaded",
    "bos_token_id": "prompts are token ids already",
    "pad_token_id": "rows have explicit lengths; no token marks padding",
    "use_cache": "generation always caches",
    "transformers_version": "records the writer of the file",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TargetConfig:
    """Every fact that the target's forward pass depends on. All values come from the checkpoint.

    `linear_*` are 0 in a plain `qwen3` model, which has no such layers.
    """

    model_type: str
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    layer_types: tuple[str, ...]
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rope_theta: float
    partial_rotary_factor: float
    rms_norm_eps: float
    attn_output_gate: bool
    linear_num_key_heads: int
    linear_num_value_heads: int
    linear_key_head_dim: int
    linear_value_head_dim: int
    linear_conv_kernel_dim: int
    vocab_size: int
    max_position_embeddings: int
    tie_word_embeddings: bool
    eos_token_ids: tuple[int, ...]
    dtype: str

    def __post_init__(self) -> None:
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        faults = check_fields(values, _FIELDS) or broken_rules(values, _RULES)
        if faults:
            raise ConfigError("target config", faults)

    @property
    def rotary_dim(self) -> int:
        """How many leading dimensions of a query or key head rotate."""
        return int(self.head_dim * self.partial_rotary_factor)

    @property
    def norms_are_offsets(self) -> bool:
        """Whether stored norm weights are offsets from one rather than factors."""
        return self.model_type == TEXT_MODEL_TYPE

    @classmethod
    def from_hf(cls, config: Mapping[str, Any], generation_config: Mapping[str, Any] | None = None) -> Self:
        """Read the mappings of `config.json` and, where there is one, `generation_config.json`.

        Accepts the multimodal wrapper (`model_type` qwen3_5 with a `text_config`), the text-only form
        (qwen3_5_text) and plain models (qwen3). Stop ids are the union of every `eos_token_id` of both files, the
        config's first; nothing else of `generation_config` is read, since sampling settings belong to a request.
        Raises ConfigError, which lists every fault.
        """
        outer = Source(config)
        model_type, text = _text_source(outer)
        plain = model_type == PLAIN_MODEL_TYPE
        values = _read_plain(text) if plain else _read_text(text, outer)
        values["model_type"] = model_type
        values["eos_token_ids"] = _read_eos(text, outer, generation_config)
        text.close(IGNORABLE_PLAIN if plain else IGNORABLE_TEXT)
        if outer is not text:
            outer.close(IGNORABLE_WRAPPER)
        faults = outer.faults + broken_rules(values, (*_RULES, _mrope_shares_frequencies))
        if faults:
            raise ConfigError("target config", faults)
        del values["mrope_section"]
        return cls(**values)

    def to_hf(self) -> dict[str, Any]:
        """The text-only `config.json` mapping; `from_hf(to_hf())` gives an equal config."""
        hybrid = self.model_type == TEXT_MODEL_TYPE
        own = {"attn_output_gate": self.attn_output_gate} if hybrid else {"use_sliding_window": False}
        partial = {"partial_rotary_factor": self.partial_rotary_factor} if hybrid else {}
        return {
            "architectures": ["Qwen3_5ForCausalLM" if hybrid else PLAIN_ARCHITECTURE],
            "model_type": self.model_type,
            **{name: getattr(self, name) for name in (*_DIRECT, *(_LINEAR_SIZES if hybrid else ()))},
            **own,
            "layer_types": list(self.layer_types),
            "rope_parameters": {"rope_type": "default", "rope_theta": self.rope_theta, **partial},
            "hidden_act": "silu",
            "attention_bias": False,
            "tie_word_embeddings": self.tie_word_embeddings,
            "eos_token_id": list(self.eos_token_ids),
            "dtype": self.dtype,
        }


def _text_source(outer: Source) -> tuple[str, Source]:
    """The text stack's model type and the mapping with its keys: `text_config` of a wrapper, else the config itself."""
    model_type = outer.take("model_type", one_of(WRAPPER_MODEL_TYPE, TEXT_MODEL_TYPE, PLAIN_MODEL_TYPE))
    if model_type is ABSENT:
        # What the other keys mean depends on the model type.
        raise ConfigError("target config", outer.faults)
    if model_type == PLAIN_MODEL_TYPE:
        outer.expect("architectures", [PLAIN_ARCHITECTURE], why="Drafters are no targets.", required=True)
        if outer.faults:
            raise ConfigError("target config", outer.faults)
    if model_type != WRAPPER_MODEL_TYPE:
        return model_type, outer
    text = outer.section("text_config")
    if text is None:
        outer.fault("text_config", f"missing; model_type {WRAPPER_MODEL_TYPE!r} keeps the text model there.")
        raise ConfigError("target config", outer.faults)
    text.expect("model_type", TEXT_MODEL_TYPE, why="No other text stack is implemented.")
    return TEXT_MODEL_TYPE, text


def _read_plain(config: Source) -> dict[str, Any]:
    """A dense model: full attention in every layer, whole heads rotate, no output gate."""
    values = _read_shared(config, (config,))
    full = config.take("layer_types", list_of(FULL), default=None)
    count = values["num_hidden_layers"]
    values["layer_types"] = full if full is not None else ABSENT if count is ABSENT else (FULL,) * count
    rope = read_rope(config, default_partial=1.0)
    values["rope_theta"], values["partial_rotary_factor"], values["mrope_section"] = rope
    config.expect("use_sliding_window", False, why="Sliding windows are not implemented in the target.")
    config.expect("sliding_window", None, why="Sliding windows are not implemented in the target.")
    return values | {"attn_output_gate": False} | dict.fromkeys(_LINEAR_SIZES, 0)


def _read_text(text: Source, outer: Source) -> dict[str, Any]:
    values = _read_shared(text, (text,) if text is outer else (text, outer))
    values |= {name: text.take(name, POSITIVE_INT) for name in _LINEAR_SIZES}
    values["layer_types"] = _read_layer_types(text, values["num_hidden_layers"])
    rope = read_rope(text, default_partial=None)
    values["rope_theta"], values["partial_rotary_factor"], values["mrope_section"] = rope
    # Exports that leave the switch out all have the gate: it is the architecture's only form.
    values["attn_output_gate"] = text.take("attn_output_gate", BOOL, default=True)
    text.expect("output_gate_type", "swish", "silu", why="The gated norm multiplies by SiLU of the gate.")
    text.expect("mamba_ssm_dtype", "float32", why="The recurrent state is always float32.")
    return values


def _read_shared(text: Source, levels: Sequence[Source]) -> dict[str, Any]:
    """What both architectures have; some of it may stand at either level of a wrapper."""
    values = {name: text.take(name, _FIELDS[name]) for name in _DIRECT}
    values["tie_word_embeddings"] = agreed([(level, "tie_word_embeddings") for level in levels], BOOL)
    values["dtype"] = agreed([(level, key) for level in levels for key in ("dtype", "torch_dtype")], DTYPE)

    text.expect("hidden_act", "silu", why="The MLP is SwiGLU with SiLU.", required=True)
    text.expect("attention_bias", False, why="Projections with biases are not implemented.", required=True)
    for level in levels:
        quantization = level.section("quantization_config")
        if quantization is not None:
            BlockFp8.read(quantization)
    return values


def _read_layer_types(text: Source, num_hidden_layers: Any) -> Any:
    """`layer_types`, or its derivation from `full_attention_interval`; where both stand they must agree."""
    explicit = text.take("layer_types", _FIELDS["layer_types"], default=None)
    interval = text.take("full_attention_interval", POSITIVE_INT, default=None)
    if explicit is None and interval is None:
        text.fault("layer_types", "missing, and full_attention_interval too; wanted one of them. Add it.")
        return ABSENT
    if interval is None or ABSENT in (explicit, interval, num_hidden_layers):
        return explicit if interval is None else ABSENT
    derived = tuple(LINEAR if (i + 1) % interval else FULL for i in range(num_hidden_layers))
    if explicit is not None and len(explicit) == num_hidden_layers and explicit != derived:
        first = next(i for i in range(num_hidden_layers) if explicit[i] != derived[i])
        text.fault(
            "layer_types",
            f"disagrees with full_attention_interval {interval} first at layer {first}: "
            f"got {explicit[first]!r} and {derived[first]!r}. "
            "Keep the schedule that the weights were trained with.",
        )
        return ABSENT
    return derived if explicit is None else explicit


def _read_eos(text: Source, outer: Source, generation_config: Mapping[str, Any] | None) -> Any:
    sources = [text] if text is outer else [text, outer]
    if generation_config is not None:
        sources.append(Source(generation_config, "generation_config", outer.faults))
    given = [source for source in sources if source.has("eos_token_id")]
    if not given:
        outer.fault(
            "eos_token_id",
            "missing in config and generation_config; wanted ids, or null for a model without a stop token.",
        )
        return ABSENT
    ids: list[int] = []
    for source in given:
        found = source.take("eos_token_id", TOKEN_IDS)
        ids.extend(() if found is ABSENT else found)
    return tuple(dict.fromkeys(ids))


def _linear_layers_have_sizes(
    layer_types: tuple[str, ...],
    linear_num_key_heads: int,
    linear_num_value_heads: int,
    linear_key_head_dim: int,
    linear_value_head_dim: int,
    linear_conv_kernel_dim: int,
) -> str | None:
    sizes = (
        linear_num_key_heads,
        linear_num_value_heads,
        linear_key_head_dim,
        linear_value_head_dim,
        linear_conv_kernel_dim,
    )
    if LINEAR not in layer_types or all(sizes):
        return None
    named = dict(zip(_LINEAR_SIZES, sizes, strict=True))
    return f"layer_types: has {LINEAR} layers, but their sizes are {named}; wanted positive integers."


def _linear_key_heads_divide(linear_num_value_heads: int, linear_num_key_heads: int) -> str | None:
    if not linear_num_key_heads or linear_num_value_heads % linear_num_key_heads == 0:
        return None
    return (
        f"linear_num_value_heads: got {linear_num_value_heads}; wanted a multiple of "
        f"linear_num_key_heads {linear_num_key_heads}."
    )


def _rotary_dim_is_even(head_dim: int, partial_rotary_factor: float) -> str | None:
    rotary_dim = int(head_dim * partial_rotary_factor)
    if rotary_dim > 0 and rotary_dim % 2 == 0:
        return None
    return (
        f"partial_rotary_factor: got {partial_rotary_factor}, which rotates {rotary_dim} of {head_dim} "
        "dimensions; wanted an even number above 0."
    )


def _eos_in_vocabulary(eos_token_ids: tuple[int, ...], vocab_size: int) -> str | None:
    outside = [token for token in eos_token_ids if token >= vocab_size]
    return f"eos_token_id: got {outside}; wanted ids below vocab_size {vocab_size}." if outside else None


def _mrope_shares_frequencies(
    mrope_section: tuple[int, ...] | None, head_dim: int, partial_rotary_factor: float
) -> str | None:
    return mrope_fault(mrope_section, int(head_dim * partial_rotary_factor))


_RULES = (
    one_type_per_layer,
    key_value_heads_divide,
    head_dim_is_even,
    _linear_layers_have_sizes,
    _linear_key_heads_divide,
    _rotary_dim_is_even,
    _eos_in_vocabulary,
)
