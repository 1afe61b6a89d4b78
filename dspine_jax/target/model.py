"""The hybrid stack: token ids and a cache in, hidden states, tapped layer outputs and the next cache out."""

import dataclasses
from collections.abc import Sequence

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from dspine_jax.cache.gdn_state import GDNState
from dspine_jax.cache.paged_kv import PagedKV
from dspine_jax.cache.target_cache import TargetCache
from dspine_jax.config import TargetConfig
from dspine_jax.layers import Embedding, GatedMLP, Linear, Scale
from dspine_jax.norms import target_norm
from dspine_jax.target.attention import Attention
from dspine_jax.target.gated_delta_net import GatedDeltaNet
from dspine_jax.target.rows import Rows
from pallas_kernels.implementation import Implementation
from pallas_kernels.row_norm import RowNorm


class Layer(nnx.Module):
    """Pre-norm mixer (gated delta net or attention), then pre-norm MLP, both added to the residual stream."""

    def __init__(self, config: TargetConfig, kind: str, dtype: jnp.dtype, implementation: Implementation | None):
        self.config = config
        self.implementation: Implementation | None = implementation
        self.input_layernorm = Scale(config.hidden_size, dtype)
        self.post_attention_layernorm = Scale(config.hidden_size, dtype)
        self.mlp = GatedMLP(config.hidden_size, config.intermediate_size, dtype)
        if kind == "full_attention":
            self.self_attn = Attention(config, dtype, implementation)
        else:
            self.linear_attn = GatedDeltaNet(config, dtype, implementation)

    def __call__(
        self,
        x: Float[Array, "B T H"],
        normed: Float[Array, "B T H"],
        rows: Rows,
        entry: PagedKV | GDNState,
        cache: TargetCache,
        following: RowNorm,
    ) -> tuple[Float[Array, "B T H"], Float[Array, "B T H"], PagedKV | GDNState]:
        """`normed` is `input_layernorm` of x; also returned is the norm of the result that the next layer reads."""
        inner = _norm(self.post_attention_layernorm, self.config)
        if isinstance(entry, PagedKV):
            x, normed_x, entry = self.self_attn(normed, x, inner, rows, entry, cache.page_table)
        else:
            x, normed_x, entry = self.linear_attn(normed, x, inner, rows, entry, cache.pending)
        return *self.mlp.with_norm(normed_x, x, following, rows.implementation(self.implementation)), entry


class Target(nnx.Module):
    """The text stack of `qwen3_5`, or a plain `qwen3` model.

    Parameter paths are the checkpoint's names without their prefix.

    `implementation` is what the operations of `pallas_kernels` run as; training needs "xla", which has gradients.
    """

    def __init__(
        self,
        config: TargetConfig,
        dtype: jnp.dtype = jnp.bfloat16,
        implementation: Implementation | None = None,
    ):
        self.config = config
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size, dtype)
        self.layers = nnx.List([Layer(config, kind, dtype, implementation) for kind in config.layer_types])
        self.norm = Scale(config.hidden_size, dtype)
        if not config.tie_word_embeddings:
            self.lm_head = Linear(config.vocab_size, config.hidden_size, dtype)

    def __call__(
        self, ids: Int[Array, "B T"], rows: Rows, cache: TargetCache, taps: Sequence[int] = ()
    ) -> tuple[Float[Array, "B T H"], Float[Array, "B T F"], TargetCache]:
        """Hidden states after the final norm, and the features: layers `taps`' outputs side by side.

        Tap k is the residual stream after layer k. A committed chunk leaves nothing pending; a block leaves its
        records for `TargetCache.commit`.
        """
        x = self.embed_tokens(ids)
        norms = [_norm(scale, self.config) for scale in (*(layer.input_layernorm for layer in self.layers), self.norm)]
        normed = norms[0](x)
        features, entries = [], []
        layers = zip(self.layers, cache.layers, norms[1:], strict=True)
        for index, (layer, entry, following) in enumerate(layers):
            x, normed, entry = layer(x, normed, rows, entry, cache, following)
            entries.append(entry)
            if index in taps:
                features.append(x)
        cache = dataclasses.replace(cache, layers=tuple(entries), pending=jnp.zeros_like(cache.pending))
        tapped = jnp.concatenate(features, axis=-1) if features else x[..., :0]
        return normed, tapped, cache

    @property
    def head(self) -> Float[Array, "V H"]:
        """The output head's weight, the embedding's when tied."""
        table = self.embed_tokens if self.config.tie_word_embeddings else self.lm_head
        return table.weight[...]

    def logits(self, hidden: Float[Array, "... H"]) -> Float[Array, "... V"]:
        """Scores of the vocabulary in float32."""
        return jnp.einsum("...h,vh->...v", hidden, self.head, preferred_element_type=jnp.float32)


def _norm(scale: Scale, config: TargetConfig) -> RowNorm:
    return target_norm(scale.weight[...], config.rms_norm_eps, config.norms_are_offsets)
