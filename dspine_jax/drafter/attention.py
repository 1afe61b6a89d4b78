"""Block attention of the drafter: rows of one block read the fused context and their own block."""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from dspine_jax.cache.draft_ring import DraftRing
from dspine_jax.config import DrafterConfig
from dspine_jax.layers import Linear, Scale
from pallas_kernels.attention_inputs import Heads, rotate_heads
from pallas_kernels.block_attention import ring_block_attention
from pallas_kernels.implementation import Implementation
from pallas_kernels.projection import project, project_norm
from pallas_kernels.rope import Rope
from pallas_kernels.row_norm import RowNorm


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

    def keys(self, rows: Float[Array, "B T KD"]) -> Heads:
        """What k_proj gives, to be normed and rotated."""
        return self._heads(rows, self.k_norm, self.config.num_key_value_heads)

    @property
    def rope(self) -> Rope:
        """All of a head is rotated."""
        return Rope(self.config.head_dim, self.config.rope_theta)

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
        queries = self._heads(q, self.q_norm, self.config.num_attention_heads)
        q, k = rotate_heads([queries, self.keys(k)], positions, self.rope, implementation=self.implementation)
        o = ring_block_attention(
            q,
            context.k,
            context.v,
            k,
            v.reshape(k.shape),
            positions[:, 0],
            window=self.window,
            causal=self.causal,
            implementation=self.implementation,
        )
        o, out = o.reshape(*x.shape[:2], -1), self.o_proj.weight[...]
        return project_norm(o, out, residual, norm, implementation=self.implementation)

    def _heads(self, rows, scale, count):
        return Heads(rows, RowNorm(scale.weight[...], self.config.rms_norm_eps, "plain"), count, self.config.head_dim)
