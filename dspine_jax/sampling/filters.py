"""From logits to the law that a token is drawn from: temperature, top-k, top-p, min-p. The only definition.

The prompt's last row, a plain step, verified rows and the drafter's candidates all come through `probabilities`.
Tokens are ordered by value, and by id among equals. With x = logits / T:

1. top-k keeps the first k tokens, exactly k whatever the ties.
2. top-p keeps a token if the mass of the tokens before it, renormalised after 1, is less than top_p: the token that
   crosses the bound stays, and the first one always does.
3. min-p keeps a token if its probability is at least min_p times the greatest.
4. What is left is renormalised.

A greedy row (T = 0) gets all mass on its first token.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

PAIRWISE = 32  # widest row that is ordered by comparing all pairs


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["temperature", "top_k", "top_p", "min_p"], meta_fields=[]
)
@dataclasses.dataclass(frozen=True)
class Filters:
    """One entry per slot."""

    temperature: Float[Array, " B"]  # 0: greedy
    top_k: Int[Array, " B"]  # 0: off
    top_p: Float[Array, " B"]  # 1: off
    min_p: Float[Array, " B"]  # 0: off


def probabilities(logits: Float[Array, "B R V"], filters: Filters) -> Float[Array, "B R V"]:
    """The law of each row, float32. At least one logit of a row must be finite, none may be +inf or NaN."""

    def per_row(x):
        return x[:, None, None]

    greedy = per_row(filters.temperature == 0)
    # The greatest logit is subtracted before the division: no temperature, however small, makes a NaN.
    shifted = logits - jnp.max(logits, axis=-1, keepdims=True)
    x = shifted / jnp.where(greedy, 1.0, per_row(filters.temperature))
    mass = jnp.exp(x)
    kept = jax.lax.cond(
        jnp.any((filters.top_k > 0) | (filters.top_p < 1)),
        lambda: _top(x, mass, per_row(filters.top_k), per_row(filters.top_p)),
        lambda: jnp.ones(x.shape, jnp.bool_),
    )
    mass = jnp.where(kept & (mass >= per_row(filters.min_p)), mass, 0.0)
    drawn = mass / jnp.sum(mass, axis=-1, keepdims=True)
    first = jax.nn.one_hot(jnp.argmax(logits, axis=-1), logits.shape[-1], dtype=drawn.dtype)
    return jnp.where(greedy, first, drawn)


def _top(x, mass, top_k, top_p):
    largest, heaviest = (_largest_pairwise, _heaviest_pairwise) if x.shape[-1] <= PAIRWISE else (_largest, _heaviest)
    kept = largest(x, jnp.where(top_k > 0, top_k, x.shape[-1]))
    mass = jnp.where(kept, mass, 0.0)
    share = mass / jnp.sum(mass, axis=-1, keepdims=True)
    return kept & ((top_p >= 1) | heaviest(x, share, top_p))


def _largest_pairwise(x: Float[Array, "B R V"], k: Int[Array, "B 1 1"]) -> Bool[Array, "B R V"]:
    return jnp.sum(_before(x), axis=-1) < k


def _heaviest_pairwise(
    x: Float[Array, "B R V"], share: Float[Array, "B R V"], bound: Float[Array, "B 1 1"]
) -> Bool[Array, "B R V"]:
    return jnp.sum(jnp.where(_before(x), share[:, :, None], 0.0), axis=-1) < bound


def _before(x: Float[Array, "B R V"]) -> Bool[Array, "B R V V"]:
    """[b, r, v, u]: u comes before v."""
    this, other = x[..., :, None], x[..., None, :]
    index = jnp.arange(x.shape[-1])
    return (other > this) | ((other == this) & (index[None, :] < index[:, None]))


def _largest(x: Float[Array, "B R V"], k: Int[Array, "B 1 1"]) -> Bool[Array, "B R V"]:
    """The first k tokens of each row. No sort: the k-th value is found bit by bit."""
    rank = _rank(x)
    border = _greatest(lambda least: jnp.sum(rank >= least, axis=-1, keepdims=True) >= k, x)
    above, tie = rank > border, rank == border
    room = k - jnp.sum(above, axis=-1, keepdims=True)
    return above | (tie & (jnp.cumsum(tie, axis=-1) <= room))


def _heaviest(
    x: Float[Array, "B R V"], share: Float[Array, "B R V"], bound: Float[Array, "B 1 1"]
) -> Bool[Array, "B R V"]:
    """Tokens before which there is less mass than `bound`, found in the same way."""
    rank = _rank(x)

    def mass(tokens):
        return jnp.sum(jnp.where(tokens, share, 0.0), axis=-1, keepdims=True)

    border = _greatest(lambda least: mass(rank >= least) >= bound, x)
    above, tie = rank > border, rank == border
    earlier = jnp.cumsum(tie, axis=-1) - 1
    return above | (tie & (mass(above) + share * earlier.astype(share.dtype) < bound))


def _rank(x: Float[Array, "B R V"]) -> UInt32[Array, "B R V"]:
    """Unsigned integers in the order of the values; both zeros are one value."""
    bits = jax.lax.bitcast_convert_type(jnp.where(x == 0, 0.0, x), jnp.uint32)
    sign = jnp.uint32(1 << 31)
    return jnp.where(bits >= sign, ~bits, bits | sign)


def _greatest(holds: Callable[[jax.Array], jax.Array], x: jax.Array) -> UInt32[Array, "B R 1"]:
    """The greatest rank for which `holds`, which is true up to some rank and false above; 0 if for none."""

    def set_bit(index, found):
        tried = found | (jnp.uint32(1 << 31) >> index.astype(jnp.uint32))
        return jnp.where(holds(tried), tried, found)

    return jax.lax.fori_loop(0, 32, set_bit, jnp.zeros((*x.shape[:-1], 1), jnp.uint32))
