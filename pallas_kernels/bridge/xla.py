"""Plain XLA form over all rows of all blocks at once."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["receiver_gate", "predecessor_gate", "message", "gate_bias"],
    meta_fields=[],
)
@dataclasses.dataclass(frozen=True)
class BridgeGates:
    """The projections that all layers share."""

    receiver_gate: Float[Array, "M C"]  # G
    predecessor_gate: Float[Array, "M C"]  # Gp
    message: Float[Array, "M C"]  # A
    gate_bias: Float[Array, " M"]  # b


def bridge(
    x: Float[Array, "B T H"],
    anchor_code: Float[Array, "B C"],
    readout: Float[Array, "C H"],
    write: Float[Array, "H M"],
    gates: BridgeGates,
    *,
    eps: float,
) -> tuple[Float[Array, "B T H"], Float[Array, "B T 1"], Float[Array, "B T C"]]:
    """x' in x's dtype, and the float32 magnitudes r and codes c that made it.

    Products take operands of x's dtype and accumulate in float32; everything between them is float32.
    """
    x32 = x.astype(jnp.float32)
    r = jnp.sqrt(jnp.mean(jnp.square(x32), axis=-1, keepdims=True))
    z = _project((x32 / (r + eps)).astype(x.dtype), readout)
    # The square root's argument is kept away from zero so that its gradient is finite; eps^2 changes no value.
    norm = jnp.sqrt(jnp.sum(jnp.square(z), axis=-1, keepdims=True) + eps**2)
    c = z.shape[-1] ** 0.5 * z / (norm + eps)
    c = jnp.concatenate([anchor_code.astype(jnp.float32)[:, None], c[:, 1:]], axis=1)
    m = gated_message(c[:, 1:].astype(x.dtype), c[:, :-1].astype(x.dtype), gates)
    update = r[:, 1:] * _project(m.astype(x.dtype), write)
    written = x32[:, 1:] + update
    return jnp.concatenate([x[:, :1], written.astype(x.dtype)], axis=1), r, c


def gated_message(
    receiver: Float[Array, "*R C"], predecessor: Float[Array, "*P C"], gates: BridgeGates
) -> Float[Array, "*Q M"]:
    """m = sigmoid(G c + Gp c_prev + b) * (A c_prev) in float32; leading dimensions broadcast."""
    gate = _project(receiver, gates.receiver_gate) + _project(predecessor, gates.predecessor_gate)
    gate = jax.nn.sigmoid(gate + gates.gate_bias.astype(jnp.float32))
    return gate * _project(predecessor, gates.message)


def _project(x, weight):
    # "highest" asks for true float32 products when the operands are float32; bfloat16 operands are exact anyway.
    return jnp.einsum(
        "...i,oi->...o", x, weight.astype(x.dtype), precision="highest", preferred_element_type=jnp.float32
    )
