"""Plain XLA form."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.bridge.gates import BridgeGates

# True float32 products, also of bfloat16 operands that are widened first.
_einsum = functools.partial(jnp.einsum, precision="highest", preferred_element_type=jnp.float32)


def tail_xla(
    x: Float[Array, "B P H"],
    magnitude: Float[Array, "B P 1"],
    code: Float[Array, "B P C"],
    predecessor: Float[Array, "B P U C"],
    head: Float[Array, "B P k H"],
    write: Float[Array, "H M"],
    norm: Float[Array, " H"],
    gates: BridgeGates,
    *,
    eps: float,
) -> Float[Array, "B P U k"]:
    """s as of `tail_scores`."""
    refined = refine(x, magnitude, code, predecessor, write, norm, gates, eps=eps)
    return _einsum("bpuh,bpvh->bpuv", refined, head.astype(jnp.float32))


def refine(
    x: Float[Array, "*R H"],
    magnitude: Float[Array, "*R 1"],
    code: Float[Array, "*R C"],
    predecessor: Float[Array, "*R U C"],
    write: Float[Array, "H M"],
    norm: Float[Array, " H"],
    gates: BridgeGates,
    *,
    eps: float,
) -> Float[Array, "*R U H"]:
    """g * y(u) / rho(u) in float32: a row's last write made again for known predecessors u, normed."""
    heard = predecessor.shape[-1] ** 0.5 * predecessor.astype(jnp.float32)
    gate = _einsum("...c,mc->...m", heard, gates.predecessor_gate.astype(jnp.float32))
    gate += _einsum("...c,mc->...m", code, gates.receiver_gate.astype(jnp.float32))[..., None, :]
    message = jax.nn.sigmoid(gate + gates.gate_bias.astype(jnp.float32))
    message *= _einsum("...c,mc->...m", heard, gates.message.astype(jnp.float32))
    update = _einsum("...m,hm->...h", message, write.astype(jnp.float32))
    y = x.astype(jnp.float32)[..., None, :] + magnitude[..., None, :] * update
    rho2 = jnp.mean(jnp.square(y), axis=-1, keepdims=True) + eps
    return y * jax.lax.rsqrt(rho2) * norm.astype(jnp.float32)
