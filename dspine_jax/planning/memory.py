"""Bytes of weights and state by part."""

import math
from typing import Any

import jax

from dspine_jax.cache.gdn_state import GDNState
from dspine_jax.cache.paged_kv import PagedKV
from dspine_jax.loop.state import LoopState
from dspine_jax.planning.pair import AbstractPair

CODEBOOK = "injection.codebook.weight"


def bytes_of(tree: Any) -> int:
    """Bytes of all arrays (or shapes) of a pytree."""
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def weight_parts(pair: AbstractPair) -> dict[str, int]:
    """Part -> bytes of everything that does not change; together exactly the arguments of the compiled programs."""
    drafter = dict(zip(pair.plan.drafter.names, pair.weights.drafter, strict=True))
    codebook = bytes_of(drafter.pop(CODEBOOK))
    return {
        "target": bytes_of(pair.weights.target),
        "drafter": bytes_of(drafter),
        "codebook": codebook,
        "fp8_head": bytes_of(pair.weights.coarse_head),
        "tail_tables": bytes_of(pair.weights.tables),
    }


def state_parts(state: LoopState) -> dict[str, int]:
    """Part -> bytes of everything that a cycle updates."""
    cache = state.target_cache
    gdn = [layer for layer in cache.layers if isinstance(layer, GDNState)]
    parts = {
        "target_kv": bytes_of([layer for layer in cache.layers if isinstance(layer, PagedKV)]),
        "gdn_states": bytes_of([layer.state for layer in gdn]),
        "gdn_records": bytes_of([layer.records for layer in gdn]),
        "conv_windows": bytes_of([layer.conv for layer in gdn]),
        "draft_rings": bytes_of(state.draft_cache),
    }
    return parts | {"loop": bytes_of(state) - sum(parts.values())}
