"""The drafter's context keys and values: a ring per sliding layer, every position for a full layer.

A sliding layer with window W reads at most W - 1 positions before its own, so a ring of W + block rows holds all
that any row of the next block can see. Memory stays bounded however long the context grows.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from dspine_jax.cache.slots import clear_slots
from dspine_jax.config import DrafterConfig


@functools.partial(jax.tree_util.register_dataclass, data_fields=["k", "v"], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class DraftRing:
    """One layer. Position p lives in row p % R."""

    k: Float[Array, "B R K D"]
    v: Float[Array, "B R K D"]

    @property
    def rows(self) -> tuple[Float[Array, "BR K D"], Float[Array, "BR K D"]]:
        """Keys and values, slot after slot."""
        return self.k.reshape(-1, *self.k.shape[2:]), self.v.reshape(-1, *self.v.shape[2:])

    def with_rows(self, k: Float[Array, "BR K D"], v: Float[Array, "BR K D"]) -> "DraftRing":
        """The ring with these rows."""
        return DraftRing(k=k.reshape(self.k.shape), v=v.reshape(self.v.shape))

    def places(self, positions: Int[Array, "B T"], valid: Bool[Array, "B T"]) -> Int[Array, "B T"]:
        """Which of `rows` each position has; of a span longer than the ring only its last R positions have one.

        No place is the number of rows.
        """
        slots, ring = self.k.shape[:2]
        end = jnp.max(jnp.where(valid, positions + 1, 0), axis=1, keepdims=True)
        keep = valid & (positions >= end - ring)
        first = ring * jnp.arange(slots, dtype=positions.dtype)[:, None]
        return jnp.where(keep, first + positions % ring, slots * ring)


@functools.partial(jax.tree_util.register_dataclass, data_fields=["layers"], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class DraftCache:
    """One ring per drafter layer."""

    layers: tuple[DraftRing, ...]

    @staticmethod
    def zeros(
        config: DrafterConfig, slots: int, capacity: int, *, dtype: jnp.dtype, dense: bool = False
    ) -> "DraftCache":
        """Rings for contexts of up to `capacity` positions; `dense` keeps every position in every layer."""

        window = capacity if config.sliding_window is None else min(config.sliding_window, capacity)

        def ring(kind):
            rows = capacity if dense or kind == "full_attention" else window
            shape = (slots, rows + config.block_size, config.num_key_value_heads, config.head_dim)
            return DraftRing(k=jnp.zeros(shape, dtype), v=jnp.zeros(shape, dtype))

        return DraftCache(layers=tuple(ring(kind) for kind in config.layer_types))

    def reset_slots(self, fresh: Bool[Array, " B"]) -> "DraftCache":
        """Zeroes the marked slots' rings."""
        return jax.tree.map(lambda x: clear_slots(x, fresh), self)
