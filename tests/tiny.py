"""Tiny configurations and random weights that tests share.

The sizes are small, yet no two dimensions that could be mixed up are equal: head counts, key and value widths and
the rotary width all differ. The weights keep activations near unit scale; no norm weight is constant, so that a
norm with the wrong convention shows.
"""

import dataclasses
import math
import zlib

import jax
import jax.numpy as jnp
import numpy as np

from dspine_jax.config import DrafterConfig, TargetConfig
from dspine_jax.weights import abstract_drafter, abstract_target

_TARGET = TargetConfig(
    model_type="qwen3_5_text",
    hidden_size=40,
    intermediate_size=56,
    num_hidden_layers=4,
    layer_types=("linear_attention", "linear_attention", "linear_attention", "full_attention"),
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    rope_theta=1e4,
    partial_rotary_factor=0.5,
    rms_norm_eps=1e-6,
    attn_output_gate=True,
    linear_num_key_heads=2,
    linear_num_value_heads=6,
    linear_key_head_dim=8,
    linear_value_head_dim=12,
    linear_conv_kernel_dim=4,
    vocab_size=96,
    max_position_embeddings=512,
    tie_word_embeddings=False,
    eos_token_ids=(1,),
    dtype="float32",
)


def tiny_target_config(**overrides) -> TargetConfig:
    """Three gated delta layers and one of full attention; 40 wide, 96 tokens. Id 1 ends a text."""
    return dataclasses.replace(_TARGET, **overrides)


def tiny_plain_config(**overrides) -> TargetConfig:
    """The same sizes as a plain `qwen3` model: full attention everywhere, whole heads rotate, no gate."""
    plain = {
        "model_type": "qwen3",
        "layer_types": ("full_attention",) * 4,
        "partial_rotary_factor": 1.0,
        "attn_output_gate": False,
        "linear_num_key_heads": 0,
        "linear_num_value_heads": 0,
        "linear_key_head_dim": 0,
        "linear_value_head_dim": 0,
        "linear_conv_kernel_dim": 0,
    }
    return dataclasses.replace(_TARGET, **{**plain, **overrides})


def tiny_drafter_config(target: TargetConfig, **overrides) -> DrafterConfig:
    """A drafter that fits the target: two sliding layers and a full one, blocks of 5, window 12, two taps.

    The last token of the vocabulary is the mask.
    """
    fields = {
        "hidden_size": target.hidden_size,
        "intermediate_size": 44,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "rope_theta": 1e4,
        "rms_norm_eps": 1e-6,
        "layer_types": ("sliding_attention", "sliding_attention", "full_attention"),
        "sliding_window": 12,
        "is_causal": None,
        "vocab_size": target.vocab_size,
        "max_position_embeddings": target.max_position_embeddings,
        "block_size": 5,
        "num_target_layers": target.num_hidden_layers,
        "target_layer_ids": (0, target.num_hidden_layers - 2),
        "mask_token_id": target.vocab_size - 1,
        "transfer_dim": 6,
        "message_dim": 10,
        "head_topk": 4,
        "dtype": target.dtype,
    }
    return DrafterConfig(**{**fields, **overrides})


def random_target(config: TargetConfig, seed: int) -> dict[str, jax.Array]:
    """Flat target weights in the config's dtype. Decays reach from nearly none to strong, as if trained."""
    center = 0.0 if config.norms_are_offsets else 1.0
    return _fill(abstract_target(config, jnp.dtype(config.dtype)), seed, norm_center=center)


def random_drafter(config: DrafterConfig, seed: int) -> dict[str, jax.Array]:
    """Flat drafter weights in the config's dtype."""
    return _fill(abstract_drafter(config, jnp.dtype(config.dtype)), seed, norm_center=1.0)


def _fill(abstract: dict[str, jax.ShapeDtypeStruct], seed: int, norm_center: float) -> dict[str, jax.Array]:
    return {
        name: jnp.asarray(_values(name, spec.shape, seed, norm_center), dtype=spec.dtype)
        for name, spec in abstract.items()
    }


def _values(name: str, shape: tuple[int, ...], seed: int, norm_center: float) -> np.ndarray:
    # One stream per name: another config or parameter order changes no other tensor.
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    if name.endswith("A_log"):
        return np.log(rng.uniform(0.5, 16.0, shape))
    if name.endswith("dt_bias"):
        step = np.exp(rng.uniform(math.log(1e-3), math.log(1e-1), shape))
        return np.log(np.expm1(step))  # softplus of it is the step
    if name.endswith("linear_attn.norm.weight"):
        return rng.normal(1.0, 0.2, shape)
    if name.endswith(("norm.weight", "layernorm.weight")):
        return rng.normal(norm_center, 0.2, shape)
    if name == "embed_tokens.weight":
        return rng.normal(0.0, 0.5, shape)
    if name == "lm_head.weight":
        return rng.normal(0.0, 3.0 / math.sqrt(shape[1]), shape)
    return rng.normal(0.0, 1.0 / math.sqrt(shape[-1]), shape)
