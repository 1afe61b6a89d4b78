"""Rotary position embedding, half-split ("NeoX") pairs, over the first dimensions of each head."""

import dataclasses

import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int


@dataclasses.dataclass(frozen=True)
class Rope:
    """Rotates dimension i with i + dim/2 by position * theta^(-2i/dim); dimensions from `dim` on pass through."""

    dim: int
    theta: float

    def __call__(self, x: Float[Array, "B T N D"], positions: Int[Array, "B T"]) -> Float[Array, "B T N D"]:
        """Every head of every row at its position, in x's dtype."""
        half = self.dim // 2
        cos, sin = jnp.split(self.table(positions, x.dtype)[..., None, :], 2, axis=-1)
        first, second, rest = x[..., :half], x[..., half : self.dim], x[..., self.dim :]
        return jnp.concatenate([first * cos - second * sin, second * cos + first * sin, rest], axis=-1)

    def table(self, positions: Int[Array, "..."], dtype: DTypeLike) -> Float[Array, "... dim"]:
        """The cosines of each position's angles, then their sines.

        Angles are float32; cosines and sines are cast to the rows' dtype, as transformers does.
        """
        half = self.dim // 2
        frequency = self.theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
        angle = positions.astype(jnp.float32)[..., None] * frequency
        return jnp.concatenate([jnp.cos(angle), jnp.sin(angle)], axis=-1).astype(dtype)
