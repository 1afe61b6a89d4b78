"""Float32 products on matrix units that multiply bfloat16.

x = x0 + x1 + x2 with bfloat16 parts of 8 significant bits each. Of the nine partial products the three smallest
(below 2^-24 of the result) are left out.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, BFloat16, Float

PARTS = 3
# (part of the left factor, part of the right one), smallest products first: they must not be lost beside large sums.
TERMS = tuple(sorted(((i, j) for i in range(PARTS) for j in range(PARTS - i)), key=lambda term: -sum(term)))

_UPPER_HALF = -0x10000


def split(x: Float[Array, "..."]) -> tuple[BFloat16[Array, "..."], ...]:
    """The parts of a float32 array, largest first; their sum differs from it by at most 2^-24 of its size."""
    parts = []
    for _ in range(PARTS - 1):
        # By masking, not by rounding there and back: no compiler may drop it, and it needs no slow conversion.
        bits = jax.lax.bitcast_convert_type(x, jnp.int32) & jnp.int32(_UPPER_HALF)
        part = jax.lax.bitcast_convert_type(bits, jnp.float32)
        parts.append(part.astype(jnp.bfloat16))
        x = x - part
    return (*parts, x.astype(jnp.bfloat16))
