"""The projections that every layer's bridge shares."""

import dataclasses
import functools

import jax
from jaxtyping import Array, Float


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["receiver_gate", "predecessor_gate", "message", "gate_bias"],
    meta_fields=[],
)
@dataclasses.dataclass(frozen=True)
class BridgeGates:
    """Weights of m = sigmoid(G c + Gp c_prev + b) * (A c_prev)."""

    receiver_gate: Float[Array, "M C"]  # G
    predecessor_gate: Float[Array, "M C"]  # Gp
    message: Float[Array, "M C"]  # A
    gate_bias: Float[Array, " M"]  # b
