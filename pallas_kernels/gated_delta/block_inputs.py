"""From a layer's projections to the recurrence's rows: short causal convolution, SiLU, heads, gates."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

# q, k, v, g, beta, all float32
Rows = tuple[
    Float[Array, "B T Nk K"],
    Float[Array, "B T Nk K"],
    Float[Array, "B T Nv V"],
    Float[Array, "B T Nv"],
    Float[Array, "B T Nv"],
]


def block_inputs(
    inputs: Float[Array, "B T+w-1 channels"],
    a: Float[Array, "B T Nv"],
    b: Float[Array, "B T Nv"],
    taps: Float[Array, "channels w"],
    a_log: Float[Array, " Nv"],
    dt_bias: Float[Array, " Nv"],
    valid: Bool[Array, "B T"],
    *,
    key_heads: int,
    key_dim: int,
) -> Rows:
    """What `gated_delta_prefill` and `gated_delta_replay` read (transformers `Qwen3_5GatedDeltaNet`).

    `inputs` are the projected q|k|v channels, first the w - 1 rows before the first new one. Convolution and SiLU are
    made in float32 and rounded to the inputs' dtype, the rest is float32. An invalid row changes no state: its g and
    beta are 0.
    """
    mixed = _silu(_convolution(inputs, taps))
    key_width = key_heads * key_dim
    q, k, v = jnp.split(mixed, [key_width, 2 * key_width], axis=-1)
    q, k = (l2_norm(x.reshape(*x.shape[:2], key_heads, key_dim)) for x in (q, k))
    v = v.reshape(*v.shape[:2], a.shape[2], -1)
    beta = jax.nn.sigmoid(b.astype(jnp.float32))
    g = -jnp.exp(a_log) * jax.nn.softplus(a.astype(jnp.float32) + dt_bias)
    g, beta = (jnp.where(valid[..., None], x, 0.0) for x in (g, beta))
    return q * key_dim**-0.5, k, v.astype(jnp.float32), g, beta


def l2_norm(x: Float[Array, "... K"]) -> Float[Array, "... K"]:
    """Unit length in float32; 1e-6 is added to the sum of squares, so a zero vector stays zero."""
    x = x.astype(jnp.float32)
    return x * jax.lax.rsqrt(jnp.sum(jnp.square(x), axis=-1, keepdims=True) + 1e-6)


def _convolution(x: Array, taps: Array) -> Array:
    """Depthwise and causal; the last tap multiplies the current row. Summed in float32, then rounded."""
    weight = taps.astype(jnp.float32)
    width = weight.shape[1]
    rows = x.shape[1] - width + 1
    wide = x.astype(jnp.float32)
    first = wide[:, :rows] * weight[:, 0]
    return sum((wide[:, i : i + rows] * weight[:, i] for i in range(1, width)), first).astype(x.dtype)


def _silu(x):
    return jax.nn.silu(x.astype(jnp.float32)).astype(x.dtype)
