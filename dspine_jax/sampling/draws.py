"""All randomness: each number is a function of the request's seed and of where it is used, and of nothing else.

A number's counter is (position of the block's first row, row in the block, purpose). A request's position grows with
every cycle that it takes part in, so no counter comes twice in a request, and neither the slot, the batch, nor the
neighbours enter it: a seeded request draws the same numbers wherever it runs.

Why the block's first row and not the token's own absolute position: a cycle also draws tokens that it then discards,
and given what was accepted, those draws are no longer distributed as drawn (block verification looks at the whole
block before it accepts a prefix). A number used again at the same position in the next cycle would carry that
condition into it and bias the output. The first row's position is new in every cycle, so all its numbers are fresh.
"""

import enum

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, UInt32

IMPLEMENTATION = "threefry2x32"  # fixed: numbers must not depend on a setting of the process


class Purpose(enum.IntEnum):
    """What a number decides. An accept coin is never used again for the token that replaces a rejected one."""

    PLAIN = 0  # the token of a row without proposals: the prompt's last, and every row of plain decoding
    DRAFT = 1  # a proposal
    ACCEPT = 2  # the coin that accepts it
    RESIDUAL = 3  # the token after the accepted ones


def fold(seed: UInt32[Array, "*R 2"], position: Int[Array, "*R"], row: Int[Array, "*R"], purpose: Purpose) -> jax.Array:
    """Keys [*R] for the counters (position, row, purpose) of these seeds."""
    keys = jax.random.wrap_key_data(seed, impl=IMPLEMENTATION)
    place = row.astype(jnp.uint32) * jnp.uint32(len(Purpose)) + jnp.uint32(purpose)
    fold_in = jax.random.fold_in
    for _ in position.shape:
        fold_in = jax.vmap(fold_in)
    return fold_in(fold_in(keys, position.astype(jnp.uint32)), place)


def row_keys(seed: UInt32[Array, "B 2"], position: Int[Array, " B"], rows: int, purpose: Purpose) -> jax.Array:
    """Keys [B, rows] of the block's rows 0 .. rows - 1."""
    shape = (position.shape[0], rows)
    row = jnp.broadcast_to(jnp.arange(rows, dtype=jnp.int32), shape)
    return fold(jnp.broadcast_to(seed[:, None], (*shape, 2)), jnp.broadcast_to(position[:, None], shape), row, purpose)


def coins(keys: jax.Array) -> Float[Array, "*R"]:
    """One uniform number in [0, 1) per key."""
    draw = _per_key(keys, lambda key: jax.random.uniform(key, (), jnp.float32))
    return draw(keys)


def gumbels(keys: jax.Array, size: int) -> Float[Array, "*R size"]:
    """`size` Gumbel numbers per key: argmax(log p + gumbels) has the law p.

    In the mode with more bits: with the usual 23, a vocabulary of 250 thousand sees its largest numbers rounded so
    coarsely that ties, which the lowest id wins, become frequent.
    """
    return _per_key(keys, lambda key: jax.random.gumbel(key, (size,), jnp.float32, mode="high"))(keys)


def choose(probabilities: Float[Array, "*R V"], noise: Float[Array, "#*R V"]) -> Int[Array, "*R"]:
    """An index of the law proportional to `probabilities`, by Gumbel numbers for each."""
    # No noise, not even an infinite one, makes an impossible token win.
    score = jnp.where(probabilities > 0, jnp.log(probabilities) + noise, -jnp.inf)
    return jnp.argmax(score, axis=-1).astype(jnp.int32)


def _per_key(keys, draw):
    for _ in keys.shape:
        draw = jax.vmap(draw)
    return draw
