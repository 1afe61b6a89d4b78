"""The drafter behind jitted calls, on random weights and features."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from dspine_jax.cache.draft_ring import DraftCache
from dspine_jax.config import DrafterConfig
from dspine_jax.drafter import Drafter, DraftStates
from dspine_jax.weights import define_drafter, leaves_of
from tests.oracle_drafter import DrafterOracle
from tests.quick_jit import jit
from tests.tiny import random_drafter, random_target, tiny_drafter_config, tiny_target_config


@dataclasses.dataclass(frozen=True)
class DrafterRunner:
    """Weights and what the drafter borrows of a target."""

    config: DrafterConfig
    flat: dict[str, jax.Array]
    embedding: jax.Array
    head: jax.Array

    @staticmethod
    def of(seed: int = 1, **overrides) -> "DrafterRunner":
        dtype = overrides.get("dtype", "float32")
        target = tiny_target_config(dtype=dtype)
        config = tiny_drafter_config(target, **{"sliding_window": 8, **overrides})
        weights = random_target(target, seed)
        return DrafterRunner(
            config=config,
            flat=random_drafter(config, seed + 1),
            embedding=weights["embed_tokens.weight"],
            head=weights["lm_head.weight"],
        )

    def replace(self, **tensors: jax.Array) -> "DrafterRunner":
        return dataclasses.replace(self, **tensors)

    @property
    def dtype(self) -> jnp.dtype:
        return jnp.dtype(self.config.dtype)

    @property
    def definition(self):
        return define_drafter(self.config, self.dtype)[0]

    @property
    def leaves(self):
        return leaves_of(define_drafter(self.config, self.dtype)[1], self.flat)

    @property
    def drafter(self) -> Drafter:
        """The module, for calls outside of jit."""
        return self.definition.bind(self.leaves)

    @property
    def oracle(self) -> DrafterOracle:
        return DrafterOracle(self.config, self.flat, self.embedding, self.head)

    def features(self, slots: int, length: int, seed: int = 5) -> jax.Array:
        shape = (slots, length, self.config.hidden_size * len(self.config.target_layer_ids))
        return jnp.asarray(np.random.default_rng(seed).normal(size=shape), self.dtype)

    def cache(self, slots: int, capacity: int = 64, *, dense: bool = False) -> DraftCache:
        return DraftCache.zeros(self.config, slots, capacity, dtype=self.dtype, dense=dense)

    def write(self, features, length, cache, start=0) -> DraftCache:
        """Features of positions start .. start + length - 1; `start` and `length` are per slot or one number."""
        slots = features.shape[0]
        start, length = (jnp.asarray(np.broadcast_to(x, slots).copy(), dtype=jnp.int32) for x in (start, length))
        return _write(self.definition, self.leaves, features, start, length, cache)

    def block(self, anchor, position, cache, *, bridged: bool = True) -> DraftStates:
        anchor, position = (jnp.asarray(x, dtype=jnp.int32) for x in (anchor, position))
        return _block(self.definition, bridged, self.leaves, self.embedding, anchor, position, cache)


@functools.partial(jit, static_argnums=0)
def _write(definition, leaves, features, start, length, cache):
    offset = jnp.arange(features.shape[1], dtype=jnp.int32)[None]
    valid = offset < length[:, None]
    return definition.bind(leaves).write_context(features, start[:, None] + offset, valid, cache)


@functools.partial(jit, static_argnums=(0, 1))
def _block(definition, bridged, leaves, embedding, anchor, position, cache):
    return definition.bind(leaves)(anchor, position, cache, embedding, bridged=bridged)
