"""Scores from tables over the vocabulary: no product with the write is left, and no norm."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.bridge.gates import BridgeGates

_einsum = functools.partial(jnp.einsum, precision="highest", preferred_element_type=jnp.float32)


def predecessor_table(codebook: Float[Array, "V C"], gates: BridgeGates) -> Float[Array, "V 2M"]:
    """P[u] = [Gp c_u, A c_u] in float32."""
    codes = codebook.shape[-1] ** 0.5 * codebook.astype(jnp.float32)
    weights = jnp.concatenate([gates.predecessor_gate, gates.message]).astype(jnp.float32)
    return _einsum("vc,mc->vm", codes, weights)


def receiver_table(
    head: Float[Array, "V H"], write: Float[Array, "H M"], norm: Float[Array, " H"]
) -> Float[Array, "V M"]:
    """Q[v] = W^T (g * head[v]) in float32."""
    return _einsum("vh,hm->vm", norm.astype(jnp.float32) * head.astype(jnp.float32), write.astype(jnp.float32))


def table_scores(
    x: Float[Array, "B P H"],
    magnitude: Float[Array, "B P 1"],
    code: Float[Array, "B P C"],
    predecessor: Float[Array, "B P U 2M"],
    receiver: Float[Array, "B P k M"],
    head: Float[Array, "B P k H"],
    norm: Float[Array, " H"],
    gates: BridgeGates,
) -> Float[Array, "B P U k"]:
    """rho(u) s(u, v) = x . (g * head[v]) + r m(u) . Q[v] in float32; rho(u) > 0 changes no argmax over v.

    `predecessor`, `receiver` and `head` are the candidates' rows of the two tables and of the head.
    """
    gate, message = jnp.split(predecessor.astype(jnp.float32), 2, axis=-1)
    gate += _einsum("bpc,mc->bpm", code, gates.receiver_gate.astype(jnp.float32))[:, :, None]
    m = jax.nn.sigmoid(gate + gates.gate_bias.astype(jnp.float32)) * message
    normed = x.astype(jnp.float32) * norm.astype(jnp.float32)
    base = _einsum("bph,bpvh->bpv", normed, head.astype(jnp.float32))
    update = _einsum("bpum,bpvm->bpuv", m, receiver.astype(jnp.float32))
    return base[:, :, None] + magnitude[..., None] * update
