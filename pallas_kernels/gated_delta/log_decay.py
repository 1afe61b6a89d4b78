"""Sums of log decays without cancellation.

A block needs exp of the sum of g over rows j+1 .. i for every pair j < i. As the difference of two cumulative sums in
float32 it would lose small decays behind a strong one: beside a sum of -600 an exponent is right to 3e-5 only.
"""

import math

import jax.numpy as jnp
from jaxtyping import Array, Float

_LOWEST = -128.0  # its exponential is 0 in float32, so nothing changes if g stops there


def split_decay(g: Float[Array, "..."], rows: int) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """g = high + low, where sums of up to `rows` values of `high` and their differences are exact in float32.

    `high` holds multiples of a power of two that is large enough for its sums to have 23 bits; `low` is below it.
    """
    step = 2.0 ** math.ceil(math.log2(rows)) * -_LOWEST * 2.0**-23
    g = jnp.maximum(g, _LOWEST)
    high = jnp.round(g / step) * step
    return high, g - high
