"""Retrieval as the formula says, in float32, with a stable sort of the whole vocabulary."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pallas_kernels.retrieval.coarse_head import CoarseHead


def retrieve_reference(
    h: Float[Array, "*R H"], head: Float[Array, "V H"], *, keep: int
) -> tuple[Int[Array, "*R k"], Float[Array, "*R k"]]:
    """Token ids and float32 scores by the head itself, best first; the lower id wins a tie."""
    scores = jnp.einsum("...h,vh->...v", h.astype(jnp.float32), head.astype(jnp.float32), precision="highest")
    best, ids = jax.lax.top_k(scores, keep)
    return ids, best


def retrieve_coarse_reference(
    h: Float[Array, "R H"], head: Float[Array, "V H"], coarse_head: CoarseHead, *, coarse: int, keep: int
) -> tuple[Int[Array, "R k"], Float[Array, "R k"]]:
    """The same among the `coarse` best tokens by the float8 head."""
    h = h.astype(jnp.float32)
    scores = jnp.einsum("rh,vh->rv", h, coarse_head.values.astype(jnp.float32), precision="highest")
    coarse_ids = jax.lax.top_k(scores * coarse_head.scale, coarse)[1]
    coarse_ids = jnp.sort(coarse_ids, axis=-1)  # so that the lower id wins a tie of exact scores
    exact = jnp.einsum("rh,rkh->rk", h, head[coarse_ids].astype(jnp.float32), precision="highest")
    best, order = jax.lax.top_k(exact, keep)
    return jnp.take_along_axis(coarse_ids, order, axis=-1), best
