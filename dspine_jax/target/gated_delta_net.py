"""Gated delta net layer of the target: projections, short causal convolution, gates, recurrence, gated norm."""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from dspine_jax.cache.gdn_state import GDNState
from dspine_jax.config import TargetConfig
from dspine_jax.layers import Linear, Scale
from dspine_jax.norms import rms_norm_gated
from dspine_jax.target.rows import Rows
from pallas_kernels.gated_delta import (
    block_inputs,
    fold_records,
    gated_delta_block,
    gated_delta_prefill,
    pad_rows,
    take_rows,
)
from pallas_kernels.implementation import Implementation
from pallas_kernels.projection import project, project_norm
from pallas_kernels.row_norm import RowNorm


class Conv(nnx.Module):
    """Depthwise causal convolution without bias; the last tap multiplies the current row."""

    def __init__(self, channels: int, kernel: int, dtype: jnp.dtype):
        self.weight = nnx.Param(jnp.zeros((channels, kernel), dtype))


class GatedDeltaNet(nnx.Module):
    """transformers `Qwen3_5GatedDeltaNet`; the recurrence is `pallas_kernels.gated_delta`.

    Its result is added to the residual, and the norm that follows is taken of that.
    """

    def __init__(self, config: TargetConfig, dtype: jnp.dtype, implementation: Implementation | None):
        self.config = config
        self.implementation: Implementation | None = implementation
        hidden = config.hidden_size
        key_width = config.linear_num_key_heads * config.linear_key_head_dim
        value_heads = config.linear_num_value_heads
        value_width = value_heads * config.linear_value_head_dim
        self.in_proj_qkv = Linear(2 * key_width + value_width, hidden, dtype)
        self.in_proj_z = Linear(value_width, hidden, dtype)
        self.in_proj_b = Linear(value_heads, hidden, dtype)
        self.in_proj_a = Linear(value_heads, hidden, dtype)
        self.conv1d = Conv(2 * key_width + value_width, config.linear_conv_kernel_dim, dtype)
        # Gates and state are float32 whatever the model's dtype, so their parameters are too.
        self.A_log = nnx.Param(jnp.zeros((value_heads,), jnp.float32))
        self.dt_bias = nnx.Param(jnp.zeros((value_heads,), jnp.float32))
        self.norm = Scale(config.linear_value_head_dim, jnp.float32)
        self.out_proj = Linear(hidden, value_width, dtype)

    def __call__(
        self,
        x: Float[Array, "B T H"],
        residual: Float[Array, "B T H"],
        norm: RowNorm,
        rows: Rows,
        cache: GDNState,
        pending: Int[Array, " B"],
    ) -> tuple[Float[Array, "B T H"], Float[Array, "B T H"], GDNState]:
        """Folds `pending` rows of the last block, then reads the new rows; see `Rows.commit`."""
        cfg = self.config
        implementation = rows.implementation(self.implementation)
        width = cfg.linear_conv_kernel_dim - 1
        inner = (self.in_proj_qkv, self.in_proj_z, self.in_proj_b, self.in_proj_a)
        mixed, z, b, a = project(x, [one.weight[...] for one in inner], implementation=implementation)
        weights = self.conv1d.weight[...], self.A_log[...], self.dt_bias[...]
        key_heads = cfg.linear_num_key_heads
        if rows.commit:
            inputs = jnp.concatenate([cache.conv_window(pending, width), mixed], axis=1)
            read = block_inputs(
                inputs, a, b, *weights, rows.valid, key_heads=key_heads, key_dim=cfg.linear_key_head_dim
            )
            state = fold_records(cache.state, cache.records, pending)
            o, state = gated_delta_prefill(*read, state, implementation=self.implementation)
            conv = pad_rows(take_rows(inputs, rows.length, width), cache.conv.shape[1])
            cache = GDNState(state=state, records=cache.records, conv=conv)
        else:
            o, state, records, conv = gated_delta_block(
                mixed,
                a,
                b,
                *weights,
                cache.state,
                cache.records,
                cache.conv,
                pending,
                rows.length,
                key_heads=key_heads,
                implementation=self.implementation,
            )
            cache = GDNState(state=state, records=records, conv=conv)

        y = rms_norm_gated(o.astype(x.dtype), self.norm.weight[...], z.reshape(o.shape), cfg.rms_norm_eps)
        y, out = y.reshape(*x.shape[:2], -1), self.out_proj.weight[...]
        return *project_norm(y, out, residual, norm, implementation=implementation), cache
