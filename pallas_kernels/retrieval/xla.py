"""Plain XLA forms of the coarse scores and of the direct retrieval."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pallas_kernels.retrieval.coarse_head import CoarseHead
from pallas_kernels.retrieval.selection import TILE


def coarse_scores_xla(
    h: Float[Array, "R H"], coarse_head: CoarseHead
) -> tuple[Float[Array, "R tiles 64"], Float[Array, "R tiles"]]:
    """Scores of all tokens by the float8 head, summed in float32, and the best of each tile."""
    values = coarse_head.values.astype(h.dtype)
    scores = jnp.einsum("rh,vh->rv", h, values, preferred_element_type=jnp.float32) * coarse_head.scale
    rows, vocabulary = scores.shape
    scores = jnp.pad(scores, ((0, 0), (0, -vocabulary % TILE)), constant_values=-jnp.inf).reshape(rows, -1, TILE)
    return scores, jnp.max(scores, axis=-1)


def retrieve_direct(
    h: Float[Array, "*R H"], head: Float[Array, "V H"], *, keep: int = 16
) -> tuple[Int[Array, "*R k"], Float[Array, "*R k"]]:
    """One pass with the original head, accumulated in float32: what `retrieve` approximates."""
    scores = jnp.einsum("...h,vh->...v", h, head, precision="highest", preferred_element_type=jnp.float32)
    best, ids = jax.lax.top_k(scores, keep)
    return ids, best
