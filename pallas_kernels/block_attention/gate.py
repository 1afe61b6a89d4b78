"""The gate of an attention's output, by XLA."""

import jax
from jaxtyping import Array, Float


def gated(o: Float[Array, "B T N D"], gate: Float[Array, "B T N G"] | None) -> Float[Array, "B T N D"]:
    """Times the sigmoid of the last D numbers of each head's gate, in the output's dtype; as it is without one."""
    return o if gate is None else o * jax.nn.sigmoid(gate[..., -o.shape[-1] :].astype(o.dtype))
