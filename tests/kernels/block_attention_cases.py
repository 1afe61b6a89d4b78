"""Fresh inputs of block attention, and what it should give in float64, made position by position.

The keys and values of every position are drawn first and then put where a cache keeps them. What a cache holds
besides is large and finite, so that it shows in the output if it has any weight; `unread` is what it holds in runs of
64 rows in which nothing is visible.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

GARBAGE = 1e4
RUN = 64
Operands = tuple[jax.Array, ...]  # of the public function, in order


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizes:
    """One call of either kind: the slots are as many as `before` has entries."""

    before: Sequence[int]  # positions before each slot's first new row
    rows: int
    heads: int
    kv_heads: int
    head_dim: int


def paged_case(
    seed: int, sizes: Sizes, *, page: int, pages: int, dtype: Any, unread: float = GARBAGE
) -> tuple[Operands, np.ndarray]:
    """Operands with `pages` pages per slot, in shuffled places of a larger pool, and the expectation."""
    rng = np.random.default_rng(seed)
    slots = len(sizes.before)
    q, k, v = _draw(rng, sizes, dtype)
    table = rng.permutation(slots * pages + 3)[: slots * pages].reshape(slots, pages)
    pools = []
    for values in (k, v):
        pool = np.full((slots * pages + 3, page, *values.shape[2:]), unread, values.dtype)
        for slot, before in enumerate(sizes.before):
            for position in range(before + sizes.rows):
                rows = pool[table[slot, position // page]]
                if position % RUN == 0:
                    rows[position % page :][:RUN] = GARBAGE
                rows[position % page] = values[slot, position]
        pools.append(jnp.asarray(pool))
    operands = (jnp.asarray(q), *pools, jnp.asarray(table, jnp.int32), jnp.asarray(sizes.before, jnp.int32))
    return operands, _expected(sizes, q, k, v, lambda reader, _start: range(reader + 1))


def gate_case(seed: int, expected: np.ndarray, dtype: Any) -> tuple[jax.Array, np.ndarray]:
    """A gate behind NaN where the query would be, and the gated expectation."""
    gate = np.array(jnp.asarray(3 * np.random.default_rng(seed).standard_normal((2, *expected.shape)), dtype))
    gate[0] = np.nan
    factor = 1 / (1 + np.exp(-gate[1].astype(np.float64)))
    return jnp.asarray(np.concatenate(gate, axis=-1)), expected * factor


def ring_case(
    seed: int,
    sizes: Sizes,
    *,
    ring: int,
    window: int | None,
    causal: bool,
    dtype: Any,
    unread: float = GARBAGE,
) -> tuple[Operands, np.ndarray]:
    """Operands with a ring of `ring` rows per slot, and the expectation."""
    rng = np.random.default_rng(seed)
    slots = len(sizes.before)
    q, k, v = _draw(rng, sizes, dtype)

    def visible(reader, start):
        oldest = max(start - ring, 0) if window is None else max(reader - window + 1, 0)
        return range(oldest, (reader if causal else start + sizes.rows - 1) + 1)

    rings, blocks = [], []
    for values in (k, v):
        held = np.full((slots, ring, *values.shape[2:]), GARBAGE, values.dtype)
        for slot, before in enumerate(sizes.before):
            for position in range(before):
                held[slot, position % ring] = values[slot, position]
            read = {position % ring // RUN for position in visible(before, before) if position < before}
            for run in set(range(-(-ring // RUN))) - read:
                held[slot, run * RUN : (run + 1) * RUN] = unread
        rings.append(jnp.asarray(held))
        blocks.append(jnp.asarray([x[before:][: sizes.rows] for x, before in zip(values, sizes.before, strict=True)]))

    operands = (jnp.asarray(q), *rings, *blocks, jnp.asarray(sizes.before, jnp.int32))
    return operands, _expected(sizes, q, k, v, visible)


def _draw(rng, sizes, dtype):
    """Queries of the new rows, keys and values of all positions. Every second slot has sharp weights."""
    slots, positions = len(sizes.before), max(sizes.before) + sizes.rows
    q = rng.standard_normal((slots, sizes.rows, sizes.heads, sizes.head_dim))
    q[1::2] *= 8
    k, v = rng.standard_normal((2, slots, positions, sizes.kv_heads, sizes.head_dim))
    return tuple(x.astype(jnp.dtype(dtype)) for x in (q, k, v))


def _expected(sizes, q, k, v, visible):
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    output = np.zeros(q.shape)
    for slot, start in enumerate(sizes.before):
        for row in range(sizes.rows):
            positions = np.array(visible(start + row, start))
            for head in range(sizes.heads):
                kv_head = head * sizes.kv_heads // sizes.heads
                scores = k[slot, positions, kv_head] @ q[slot, row, head] / np.sqrt(sizes.head_dim)
                weights = np.exp(scores - scores.max())
                output[slot, row, head] = weights @ v[slot, positions, kv_head] / weights.sum()
    return output
