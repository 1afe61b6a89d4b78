"""The formula row by row in float32."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.bridge.gates import BridgeGates


def bridge_reference(
    x: Float[Array, "T H"],
    anchor_code: Float[Array, " C"],
    readout: Float[Array, "C H"],
    write: Float[Array, "H M"],
    gates: BridgeGates,
    eps: float,
) -> tuple[Float[Array, "T H"], Float[Array, "T 1"], Float[Array, "T C"]]:
    """x', r and c of one block; `anchor_code` is already scaled by sqrt(C)."""
    x, anchor_code, readout, write, gates = jax.tree.map(
        lambda leaf: leaf.astype(jnp.float32), (x, anchor_code, readout, write, gates)
    )

    def step(heard, row):
        magnitude = jnp.sqrt(jnp.mean(row**2))
        z = readout @ (row / (magnitude + eps))
        code = len(z) ** 0.5 * z / (jnp.linalg.norm(z) + eps)
        gate = jax.nn.sigmoid(gates.receiver_gate @ code + gates.predecessor_gate @ heard + gates.gate_bias)
        written = row + magnitude * (write @ (gate * (gates.message @ heard)))
        return code, (written, magnitude, code)

    with jax.default_matmul_precision("highest"):
        _, (written, magnitudes, codes) = jax.lax.scan(step, anchor_code, x[1:])
    first = x[:1], jnp.sqrt(jnp.mean(x[:1] ** 2, axis=-1)), anchor_code[None]
    written, magnitudes, codes = map(jnp.concatenate, zip(first, (written, magnitudes, codes), strict=True))
    return written, magnitudes[:, None], codes
