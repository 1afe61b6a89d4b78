"""Rotary position embedding, half-split ("NeoX") pairs, over the first `rotary_dim` of each head."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def apply_rope(
    x: Float[Array, "B T N D"], positions: Int[Array, "B T"], *, rotary_dim: int, theta: float
) -> Float[Array, "B T N D"]:
    """Rotates dimension i with i + rotary_dim/2 by position * theta^(-2i/rotary_dim); the rest passes through.

    Angles are float32; cosines and sines are cast to x's dtype, as transformers does.
    """
    half = rotary_dim // 2
    frequency = theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angle = positions.astype(jnp.float32)[..., None, None] * frequency  # [B, T, 1, half]
    cos, sin = jnp.cos(angle).astype(x.dtype), jnp.sin(angle).astype(x.dtype)
    first, second, rest = x[..., :half], x[..., half:rotary_dim], x[..., rotary_dim:]
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin, rest], axis=-1)
