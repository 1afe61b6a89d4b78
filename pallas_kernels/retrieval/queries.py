"""bfloat16 queries as two float8 parts, so that float8 matrix products see nearly all of their bits."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.retrieval.coarse_head import E4M3_MAX


def split_queries(h: Float[Array, "R H"]) -> tuple[Float[Array, "2*R H"], Float[Array, " R"]]:
    """All high parts (e4m3), then all low parts, and a scale: h is about (high + low) * scale.

    The scale is the power of two that brings a row's largest magnitude into [224, 448). bfloat16 has 8 significant
    bits: the high part takes 4, and the rest fits the low part's 4 as long as it is a multiple of 2^-9, the smallest
    e4m3 step. So every entry down to 2^-2 is exact, and a smaller one is off by at most 2^-10, that is 4.4e-6 of the
    row's largest magnitude.
    """
    h = h.astype(jnp.float32)
    largest = jnp.max(jnp.abs(h), axis=-1)
    exponent = jnp.frexp(largest / E4M3_MAX)[1]
    exponent = jnp.clip(exponent, -100, 100)  # 2^exponent and its inverse are normal numbers, also for odd rows
    scaled = jnp.ldexp(h, -exponent[:, None])
    high = scaled.astype(jnp.float8_e4m3fn)
    low = (scaled - high.astype(jnp.float32)).astype(jnp.float8_e4m3fn)
    return jnp.concatenate([high, low]), jnp.ldexp(jnp.ones_like(largest), exponent)
