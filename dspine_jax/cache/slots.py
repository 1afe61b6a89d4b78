"""What every array with one row per slot can do."""

import jax.numpy as jnp
from jaxtyping import Array, Bool


def clear_slots(x: Array, fresh: Bool[Array, " B"], value: float = 0) -> Array:
    """`x` [B, ...] with `value` in the marked slots. A choice, not a product: NaN is cleared as well."""
    return jnp.where(fresh.reshape((-1,) + (1,) * (x.ndim - 1)), jnp.asarray(value, x.dtype), x)
