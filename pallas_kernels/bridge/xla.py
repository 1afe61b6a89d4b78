"""Plain XLA form over all rows of all blocks at once."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.bridge.gates import BridgeGates


def bridge_xla(
    x: Float[Array, "B T H"],
    anchor_code: Float[Array, "B C"],
    readout: Float[Array, "C H"],
    write: Float[Array, "H M"],
    gates: BridgeGates,
    *,
    eps: float,
) -> tuple[Float[Array, "B T H"], Float[Array, "B T 1"], Float[Array, "B T C"]]:
    """x', r and c as of `bridge`."""
    x32 = x.astype(jnp.float32)
    r = jnp.sqrt(jnp.mean(jnp.square(x32), axis=-1, keepdims=True))
    z = _project((x32 / (r + eps)).astype(x.dtype), readout)
    # The square root's argument is kept away from zero so that its gradient is finite; eps^2 changes no value.
    norm = jnp.sqrt(jnp.sum(jnp.square(z), axis=-1, keepdims=True) + eps**2)
    c = z.shape[-1] ** 0.5 * z / (norm + eps)
    c = jnp.concatenate([anchor_code.astype(jnp.float32)[:, None], c[:, 1:]], axis=1)
    receiver, predecessor = c[:, 1:].astype(x.dtype), c[:, :-1].astype(x.dtype)
    gate = _project(receiver, gates.receiver_gate) + _project(predecessor, gates.predecessor_gate)
    gate = jax.nn.sigmoid(gate + gates.gate_bias.astype(jnp.float32))
    m = gate * _project(predecessor, gates.message)
    written = x32[:, 1:] + r[:, 1:] * _project(m.astype(x.dtype), write)
    return jnp.concatenate([x[:, :1], written.astype(x.dtype)], axis=1), r, c


def _project(x, weight):
    # "highest" asks for true float32 products when the operands are float32; bfloat16 operands are exact anyway.
    return jnp.einsum(
        "...i,oi->...o", x, weight.astype(x.dtype), precision="highest", preferred_element_type=jnp.float32
    )
