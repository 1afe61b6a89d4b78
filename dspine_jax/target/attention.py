"""Full attention of the target, gated or not: partial rotary embedding, paged keys and values."""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from dspine_jax.cache.paged_kv import PagedKV
from dspine_jax.config import TargetConfig
from dspine_jax.layers import Linear, Scale
from dspine_jax.norms import target_norm
from dspine_jax.target.rows import Rows
from pallas_kernels.attention_inputs import Heads, rotate_and_store
from pallas_kernels.block_attention import paged_block_attention
from pallas_kernels.implementation import Implementation
from pallas_kernels.projection import project, project_norm
from pallas_kernels.rope import Rope
from pallas_kernels.row_norm import RowNorm


class Attention(nnx.Module):
    """softmax(q k^T / sqrt(D)) v, times sigmoid(gate) if there is one, through o_proj.

    As transformers' `Qwen3_5Attention`, and without a gate `Qwen3Attention`. Its result is added to the residual, and
    the norm that follows is taken of that.
    """

    def __init__(self, config: TargetConfig, dtype: jnp.dtype, implementation: Implementation | None):
        self.config = config
        self.implementation: Implementation | None = implementation
        hidden, dim = config.hidden_size, config.head_dim
        q_width = config.num_attention_heads * dim
        kv_width = config.num_key_value_heads * dim
        self.q_proj = Linear(q_width * (2 if config.attn_output_gate else 1), hidden, dtype)
        self.k_proj = Linear(kv_width, hidden, dtype)
        self.v_proj = Linear(kv_width, hidden, dtype)
        self.o_proj = Linear(hidden, q_width, dtype)
        self.q_norm = Scale(dim, dtype)
        self.k_norm = Scale(dim, dtype)

    def __call__(
        self,
        x: Float[Array, "B T H"],
        residual: Float[Array, "B T H"],
        norm: RowNorm,
        rows: Rows,
        kv: PagedKV,
        table: Int[Array, "B pages"],
    ) -> tuple[Float[Array, "B T H"], Float[Array, "B T H"], PagedKV]:
        cfg = self.config
        implementation = rows.implementation(self.implementation)
        weights = [one.weight[...] for one in (self.q_proj, self.k_proj, self.v_proj)]
        q, k, v = project(x, weights, implementation=implementation)
        (q_heads,), k_rows, v_rows = rotate_and_store(
            [Heads(q, self._norm(self.q_norm), cfg.num_attention_heads, cfg.head_dim)],
            Heads(k, self._norm(self.k_norm), cfg.num_key_value_heads, cfg.head_dim),
            v,
            *kv.rows,
            kv.places(table, rows.positions, rows.valid),
            rows.positions,
            Rope(cfg.rotary_dim, cfg.rope_theta),
            implementation=implementation,
        )
        kv = kv.with_rows(k_rows, v_rows)
        # Query and gate are interleaved per head: [query of head 0, gate of head 0, query of head 1, ...].
        gate = q.reshape(*q_heads.shape[:3], -1) if cfg.attn_output_gate else None
        o = paged_block_attention(
            q_heads, kv.k, kv.v, table, rows.positions[:, 0], gate=gate, implementation=implementation
        )
        o, out = o.reshape(*x.shape[:2], -1), self.o_proj.weight[...]
        return *project_norm(o, out, residual, norm, implementation=implementation), kv

    def _norm(self, scale: Scale) -> RowNorm:
        return target_norm(scale.weight[...], self.config.rms_norm_eps, self.config.norms_are_offsets)
