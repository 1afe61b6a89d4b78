"""What a block leaves behind so that any prefix of it can be folded into the state later."""

import dataclasses
import functools

import jax
from jaxtyping import Array, Float


@functools.partial(jax.tree_util.register_dataclass, data_fields=["k", "d", "g"], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class Records:
    """R rows. Row j depends on rows <= j only, so every prefix is valid on its own."""

    k: Float[Array, "B R Nk K"]  # normalised keys, float32
    d: Float[Array, "B Nv V R"]  # deltas, float32; rows last, as the state's products make them
    g: Float[Array, "B R Nv"]  # log decays, float32
