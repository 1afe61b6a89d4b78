"""Block attention of the drafter: rows of one block read the fused context and their own block."""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from dspine_jax.cache.draft_ring import DraftRing
from dspine_jax.config import DrafterConfig
from dspine_jax.layers import Linear, Scale
from dspine_jax.norms import rms_norm
from dspine_jax.rope import apply_rope
from pallas_kernels.block_attention import ring_block_attention
from pallas_kernels.implementation import Implementation
from pallas_kernels.projection import RowNorm, project, project_norm


class DraftAttention(nnx.Module):
    """Qwen3-style attention; keys and values of the context come from the fused target features.

    Its result is added to the residual, and the norm that follows is taken of that.
    """

    def __init__(self, config: DrafterConfig, kind: str, dtype: jnp.dtype, implementation: Implementation | None):
        self.config = config
        self.implementation: Implementation | None = implementation
        self.window = config.sliding_window if kind == "sliding_attention" else None
        # The checkpoint's own flag wins over what the layer type implies.
        self.causal = config.is_causal if config.is_causal is not None else kind == "sliding_attention"
        hidden, dim = config.hidden_size, config.head_dim
        self.q_proj = Linear(config.num_attention_heads * dim, hidden, dtype)
        self.k_proj = Linear(config.num_key_value_heads * dim, hidden, dtype)
        self.v_proj = Linear(config.num_key_value_heads * dim, hidden, dtype)
        self.o_proj = Linear(hidden, config.num_attention_heads * dim, dtype)
        self.q_norm = Scale(dim, dtype)
        self.k_norm = Scale(dim, dtype)

    def key_value(
        self, k: Float[Array, "B T KD"], v: Float[Array, "B T KD"], positions: Int[Array, "B T"]
    ) -> tuple[Float[Array, "B T K D"], Float[Array, "B T K D"]]:
        """Keys (normed, rotated) and values of any rows at absolute positions, from what k_proj and v_proj give."""
        k, v = (one.reshape(*one.shape[:2], -1, self.config.head_dim) for one in (k, v))
        return self._rotate(rms_norm(k, self.k_norm.weight[...], self.config.rms_norm_eps), positions), v

    def __call__(
        self,
        x: Float[Array, "B T H"],
        residual: Float[Array, "B T H"],
        norm: RowNorm,
        positions: Int[Array, "B T"],
        context: DraftRing,
    ) -> tuple[Float[Array, "B T H"], Float[Array, "B T H"]]:
        """`positions` start at the anchor's, which is also the number of context positions."""
        weights = [one.weight[...] for one in (self.q_proj, self.k_proj, self.v_proj)]
        q, k, v = project(x, weights, implementation=self.implementation)
        q = q.reshape(*x.shape[:2], -1, self.config.head_dim)
        q = self._rotate(rms_norm(q, self.q_norm.weight[...], self.config.rms_norm_eps), positions)
        k, v = self.key_value(k, v, positions)
        o = ring_block_attention(
            q,
            context.k,
            context.v,
            k,
            v,
            positions[:, 0],
            window=self.window,
            causal=self.causal,
            implementation=self.implementation,
        )
        o, out = o.reshape(*x.shape[:2], -1), self.o_proj.weight[...]
        return project_norm(o, out, residual, norm, implementation=self.implementation)

    def _rotate(self, x, positions):
        return apply_rope(x, positions, rotary_dim=self.config.head_dim, theta=self.config.rope_theta)
