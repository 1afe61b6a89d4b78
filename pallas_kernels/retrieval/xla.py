"""Plain XLA forms of the two-pass and of the direct retrieval."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

E4M3_MAX = 448.0


@functools.partial(jax.tree_util.register_dataclass, data_fields=["values", "scale"], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class CoarseHead:
    """head[v] is about values[v] * scale[v]."""

    values: Float[Array, "V H"]  # float8_e4m3fn
    scale: Float[Array, " V"]  # float32, largest magnitude of the row / 448


def quantize_head(head: Float[Array, "V H"]) -> CoarseHead:
    """Row-scaled float8 copy; a zero row keeps scale 1."""
    head = head.astype(jnp.float32)
    largest = jnp.max(jnp.abs(head), axis=-1)
    scale = jnp.where(largest > 0, largest / E4M3_MAX, 1.0)
    # Clipped: rounding of the quotient must not step over the largest finite value, which has no infinity above it.
    values = jnp.clip(head / scale[:, None], -E4M3_MAX, E4M3_MAX)
    return CoarseHead(values=values.astype(jnp.float8_e4m3fn), scale=scale)


def retrieve(
    h: Float[Array, "*R H"],
    head: Float[Array, "V H"],
    coarse_head: CoarseHead,
    *,
    coarse: int = 128,
    keep: int = 16,
) -> tuple[Int[Array, "*R k"], Float[Array, "*R k"]]:
    """Two passes: `coarse` tokens by float8 scores, then the best `keep` of them by the original head."""
    coarse = min(coarse, head.shape[0])
    values = coarse_head.values.astype(h.dtype)
    scores = jnp.einsum("...h,vh->...v", h, values, preferred_element_type=jnp.float32) * coarse_head.scale
    ids = jax.lax.top_k(scores, coarse)[1]
    exact = jnp.einsum("...h,...kh->...k", h, head[ids], precision="highest", preferred_element_type=jnp.float32)
    return _best(ids, exact, keep)


def retrieve_direct(
    h: Float[Array, "*R H"], head: Float[Array, "V H"], *, keep: int = 16
) -> tuple[Int[Array, "*R k"], Float[Array, "*R k"]]:
    """One pass with the original head, accumulated in float32: what `retrieve` approximates."""
    scores = jnp.einsum("...h,vh->...v", h, head, precision="highest", preferred_element_type=jnp.float32)
    best, ids = jax.lax.top_k(scores, keep)
    return ids, best


def _best(ids, scores, keep):
    best, order = jax.lax.top_k(scores, keep)
    return jnp.take_along_axis(ids, order, axis=-1), best
