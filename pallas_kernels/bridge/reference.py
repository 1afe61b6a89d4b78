"""The formula row by row in float32."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def bridge_reference(
    x: Float[Array, "T H"],
    anchor_code: Float[Array, " C"],
    readout: Float[Array, "C H"],
    write: Float[Array, "H M"],
    receiver_gate: Float[Array, "M C"],
    predecessor_gate: Float[Array, "M C"],
    message: Float[Array, "M C"],
    gate_bias: Float[Array, " M"],
    eps: float,
) -> Float[Array, "T H"]:
    """x' of one block; `anchor_code` is already scaled by sqrt(C)."""
    with jax.default_matmul_precision("highest"):
        rows, previous = [x[0]], anchor_code
        for row in x[1:]:
            magnitude = jnp.sqrt(jnp.mean(row**2))
            z = readout @ (row / (magnitude + eps))
            code = len(z) ** 0.5 * z / (jnp.linalg.norm(z) + eps)
            gate = jax.nn.sigmoid(receiver_gate @ code + predecessor_gate @ previous + gate_bias)
            rows.append(row + magnitude * (write @ (gate * (message @ previous))))
            previous = code
        return jnp.stack(rows)
