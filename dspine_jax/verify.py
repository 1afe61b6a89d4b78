"""Acceptance of a drafted block by the target's own scores."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def verify_greedy(
    proposals: Int[Array, "B T-1"], logits: Float[Array, "B T V"]
) -> tuple[Int[Array, " B"], Int[Array, "B T"]]:
    """Accepted proposals per row, and the target's choice after each row of the block.

    Row i of `logits` scores the token after block row i. The leading run of proposals equal to the target's choices
    is accepted, and the choice that follows it is emitted as well: the emitted run is choice 0 .. accepted. The lowest
    id wins a tie.
    """
    choices = jnp.argmax(logits, axis=-1).astype(proposals.dtype)
    return leading_run(proposals == choices[:, :-1]), choices


def leading_run(matches: Array) -> Int[Array, " B"]:
    """How many leading entries of each row are true."""
    return jnp.sum(jnp.cumprod(matches.astype(jnp.int32), axis=1), axis=1)
