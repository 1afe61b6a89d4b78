"""The formula for one position, one predecessor after the other, in float32."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.bridge.gates import BridgeGates


def tail_reference(
    x: Float[Array, " H"],
    magnitude: Float[Array, ""],
    code: Float[Array, " C"],
    predecessor: Float[Array, "U C"],
    head: Float[Array, "k H"],
    write: Float[Array, "H M"],
    norm: Float[Array, " H"],
    gates: BridgeGates,
    eps: float,
) -> Float[Array, "U k"]:
    """s of one position; `predecessor` and `head` are the candidates' rows."""
    x, predecessor, head, write, norm, gates = jax.tree.map(
        lambda leaf: leaf.astype(jnp.float32), (x, predecessor, head, write, norm, gates)
    )

    def score(stored):
        heard = len(stored) ** 0.5 * stored
        gate = jax.nn.sigmoid(gates.receiver_gate @ code + gates.predecessor_gate @ heard + gates.gate_bias)
        y = x + magnitude * (write @ (gate * (gates.message @ heard)))
        return head @ (norm * y / jnp.sqrt(jnp.mean(y**2) + eps))

    with jax.default_matmul_precision("highest"):
        return jax.lax.map(score, predecessor)
