"""What a block leaves behind so that any prefix of it can be folded into the state later."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


@functools.partial(jax.tree_util.register_dataclass, data_fields=["k", "d", "g"], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class Records:
    """R rows. Row j depends on rows <= j only, so every prefix is valid on its own."""

    k: Float[Array, "B R Nk K"]  # normalised keys, float32
    d: Float[Array, "B Nv V R"]  # deltas, float32; rows last, as the state's products make them
    g: Float[Array, "B R Nv"]  # log decays, float32


def take_rows(x: Float[Array, "B R ..."], start: Int[Array, " B"], count: int) -> Float[Array, "B count ..."]:
    """Rows start .. start + count - 1 of each batch row."""
    index = start[:, None] + jnp.arange(count)[None, :]
    return jnp.take_along_axis(x, index.reshape(index.shape + (1,) * (x.ndim - 2)), axis=1)


def pad_rows(x: Float[Array, "B T ..."], rows: int) -> Float[Array, "B R ..."]:
    """Zero rows appended."""
    return jnp.pad(x, [(0, 0), (0, rows - x.shape[1])] + [(0, 0)] * (x.ndim - 2))


def pad_records(records: Records, rows: int) -> Records:
    """Zero rows appended so that a narrow block's records have a fixed width."""
    deltas = jnp.pad(records.d, [(0, 0)] * 3 + [(0, rows - records.d.shape[-1])])
    return Records(k=pad_rows(records.k, rows), d=deltas, g=pad_rows(records.g, rows))
