"""Full attention of the target, gated or not: partial rotary embedding, paged keys and values."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from dspine_jax.cache.paged_kv import PagedKV
from dspine_jax.config import TargetConfig
from dspine_jax.layers import Linear, Scale
from dspine_jax.norms import target_norm
from dspine_jax.rope import apply_rope
from dspine_jax.target.rows import Rows
from pallas_kernels.block_attention import paged_block_attention
from pallas_kernels.implementation import Implementation
from pallas_kernels.projection import RowNorm, project, project_norm


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
        heads = (*x.shape[:2], -1)
        weights = [one.weight[...] for one in (self.q_proj, self.k_proj, self.v_proj)]
        q, k, v = project(x, weights, implementation=implementation)
        q = q.reshape(*x.shape[:2], cfg.num_attention_heads, -1)
        # Query and gate are interleaved per head: [query of head 0, gate of head 0, query of head 1, ...].
        q, gate = jnp.split(q, [cfg.head_dim], axis=-1)
        k, v = (one.reshape(*heads, cfg.head_dim) for one in (k, v))
        q, k = (
            target_norm(scale.weight[...], cfg.rms_norm_eps, cfg.norms_are_offsets)(rows_of_heads)
            for scale, rows_of_heads in ((self.q_norm, q), (self.k_norm, k))
        )
        q = apply_rope(q, rows.positions, rotary_dim=cfg.rotary_dim, theta=cfg.rope_theta)
        k = apply_rope(k, rows.positions, rotary_dim=cfg.rotary_dim, theta=cfg.rope_theta)

        kv = kv.write(table, rows.positions, rows.valid, k, v)
        o = paged_block_attention(q, kv.k, kv.v, table, rows.positions[:, 0], implementation=implementation)
        if cfg.attn_output_gate:
            o = o * jax.nn.sigmoid(gate)
        out = self.o_proj.weight[...]
        return *project_norm(o.reshape(heads), out, residual, norm, implementation=implementation), kv
