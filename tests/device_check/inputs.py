"""Arguments of each kernel's programs that make sense: what random values alone would not give."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.retrieval import quantize_head
from tests.device_check.timing import random_like
from tests.kernels.machine_code import Program


def arguments(program: Program, seed: int) -> tuple[Any, ...]:
    """Positional arguments on the device, fresh for each seed."""
    values = random_like(program.shapes, seed)
    return _SENSE.get(program.op, lambda *given: given)(*values)


def _paged(q, k, v, table, start, gate):
    """Every slot's pages in a shuffled order, and a context that fills them; gates near one."""
    pages = jax.random.permutation(jax.random.key(1), k.shape[0])[: table.size].reshape(table.shape)
    full = table.shape[1] * k.shape[1] - q.shape[1]
    gate = gate * gate.shape[-1] ** 0.5
    return 4 * q, k, v, pages.astype(table.dtype), jnp.full_like(start, full), gate


def _ring(q, k, v, block_k, block_v, length):
    """A ring that has gone round."""
    return 4 * q, k, v, block_k, block_v, jnp.full_like(length, 2 * k.shape[1] + 5)


def _rotated(*given):
    """Positions of a long context."""
    *others, positions = given
    return *others, _far(positions)


def _stored(caches, *given):
    """The same, and a place of its own for each row."""
    *others, at, positions = given
    places = jax.random.permutation(jax.random.key(2), len(caches[0]))[: at.size].reshape(at.shape)
    return caches, *others, places.astype(at.dtype), _far(positions)


def _far(positions):
    return 30_000 + jnp.broadcast_to(jnp.arange(positions.shape[1], dtype=positions.dtype), positions.shape)


def _gated(x, gate, up):
    """Rows near one: where SiLU is curved."""
    return x * x.shape[-1] ** 0.5, gate, up


def _retrieval(h, head, _coarse):
    return h, head, quantize_head(head)


def _prefill(q, k, v, g, beta, state):
    return (*_gated_rows(q, k, v, g, beta), state)


def _replay(state, records, accepted, *rows):
    return state, _recorded(records), _half(accepted, records), *_gated_rows(*rows)


def _block(caches, mixed, *others):
    state, records, conv = caches
    *others, accepted, length = others
    near_one = mixed.shape[-1] ** 0.5
    caches = state, _recorded(records), conv * near_one
    return caches, mixed * near_one, *others, _half(accepted, records), jnp.full_like(length, mixed.shape[1])


def _recorded(records):
    """Any log decay is at most 0."""
    return type(records)(k=_unit(records.k), d=records.d, g=-jnp.abs(records.g))


def _half(accepted, records):
    return jnp.full_like(accepted, records.g.shape[1] // 2)


def _gated_rows(q, k, v, g, beta):
    return _unit(q) * q.shape[-1] ** -0.5, _unit(k), v, -jax.nn.softplus(g), jax.nn.sigmoid(beta)


def _unit(x):
    return x / jnp.linalg.norm(x, axis=-1, keepdims=True)


_SENSE: dict[str, Callable[..., tuple]] = {
    "rotate_heads": _rotated,
    "rotate_and_store": _stored,
    "paged_block_attention": _paged,
    "ring_block_attention": _ring,
    "project_gated": _gated,
    "retrieval": _retrieval,
    "gated_delta_prefill": _prefill,
    "gated_delta_block": _block,
    "gated_delta_replay": _replay,
}
