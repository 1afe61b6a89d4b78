"""The target behind one jitted call, and the states that are compared with other implementations."""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dspine_jax.cache.gdn_state import GDNState
from dspine_jax.cache.target_cache import TargetCache
from dspine_jax.config import TargetConfig
from dspine_jax.target.rows import Rows
from dspine_jax.weights import define_target, leaves_of
from pallas_kernels.gated_delta import fold_records
from tests.quick_jit import jit
from tests.target_cases import Case
from tests.tiny import random_target


class Read(NamedTuple):
    """What one call returns; `layers` holds the output of each decoder layer."""

    logits: jax.Array  # [B, T, V]
    layers: tuple[jax.Array, ...]  # [B, T, H] each
    cache: TargetCache


class TargetRunner:
    """Reads chunks and blocks with weights bound once."""

    def __init__(self, config: TargetConfig, flat: dict[str, jax.Array]):
        self.config = config
        self.dtype = jnp.dtype(config.dtype)
        definition, abstract = define_target(config, self.dtype)
        self.definition = definition
        self.leaves = leaves_of(abstract, flat)
        self._forward = jit(functools.partial(_forward, definition))

    def cache(self, slots: int, *, capacity: int = 192, block: int = 16, page: int = 64) -> TargetCache:
        return TargetCache.zeros(self.config, slots, capacity, block=block, page=page, dtype=self.dtype)

    def read(self, ids, start, length, cache: TargetCache, *, commit: bool) -> Read:
        """`ids` [B, T]; `start` and `length` are one number or one per slot."""
        ids = jnp.asarray(ids, jnp.int32)
        start, length = (jnp.asarray(np.broadcast_to(x, ids.shape[0]), dtype=jnp.int32) for x in (start, length))
        rows = Rows.of(start, length, ids.shape[1], commit=commit)
        return self._forward(self.leaves, ids, rows, cache)

    def prefill(self, ids, cache: TargetCache, *, chunk: int, length=None) -> TargetCache:
        """Commits `ids` [B, T] in padded chunks; `length` limits each slot's rows."""
        total = ids.shape[1]
        length = np.broadcast_to(total if length is None else length, ids.shape[0])
        padded = np.pad(ids, [(0, 0), (0, -total % chunk)])
        for start in range(0, total, chunk):
            rows = np.clip(length - start, 0, chunk)
            cache = self.read(padded[:, start : start + chunk], start, rows, cache, commit=True).cache
        return cache


@functools.cache
def runner_of(case: Case) -> TargetRunner:
    """One runner per case in the whole test session, since compilation is what tests wait for."""
    return TargetRunner(case.config, random_target(case.config, case.seed))


def _forward(definition, leaves, ids, rows, cache) -> Read:
    model = definition.bind(leaves)
    layers = model.config.num_hidden_layers
    hidden, features, cache = model(ids, rows, cache, taps=tuple(range(layers)))
    return Read(model.logits(hidden), tuple(jnp.split(features, layers, axis=-1)), cache)


@dataclasses.dataclass(frozen=True)
class Committed:
    """One gated delta layer after the accepted rows were folded in."""

    state: np.ndarray  # [B, Nv, V, K] float32
    conv: np.ndarray  # [B, kernel - 1, channels]: the last inputs of the convolution


def committed(config: TargetConfig, cache: TargetCache) -> dict[int, Committed]:
    """By layer index."""
    folded = _fold(cache, width=config.linear_conv_kernel_dim - 1)
    return {index: Committed(np.asarray(state), np.asarray(conv)) for index, (state, conv) in folded.items()}


@functools.partial(jit, static_argnames="width")
def _fold(cache: TargetCache, width: int):
    return {
        index: (
            fold_records(layer.state, layer.records, cache.pending),
            layer.conv_window(cache.pending, width).astype(jnp.float32),
        )
        for index, layer in enumerate(cache.layers)
        if isinstance(layer, GDNState)
    }
