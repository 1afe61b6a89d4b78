"""Exact retrieval: all scores in float32, then the best `keep`."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def retrieve_reference(
    h: Float[Array, "*R H"], head: Float[Array, "V H"], *, keep: int
) -> tuple[Int[Array, "*R k"], Float[Array, "*R k"]]:
    """Token ids and float32 scores, best first; the lower id wins a tie."""
    scores = jnp.einsum("...h,vh->...v", h.astype(jnp.float32), head.astype(jnp.float32), precision="highest")
    best, ids = jax.lax.top_k(scores, keep)
    return ids, best
