"""What the replay kernel reads beside the state: small arrays that XLA makes in one pass each.

All are padded to blocks of 16 rows; a padding row has g = beta = 0 and zeros elsewhere, so it changes nothing.
"""

import jax.numpy as jnp
from jaxtyping import Array, BFloat16, Float, Int

from pallas_kernels.bf16_parts import split
from pallas_kernels.gated_delta.log_decay import split_decay

BLOCK = 16  # rows that the kernel works on
# Rows of the gates: the log decays as HIGH + LOW, the factor of each system's coefficients, the records' log decays.
HIGH, LOW, FACTOR, DECAY = range(4)
GATES = 4


def pad(x: Float[Array, "..."], axis: int) -> Float[Array, "..."]:
    """Zeros appended along an axis of rows."""
    missing = BLOCK - x.shape[axis]
    return jnp.pad(x, [(0, missing if i == axis else 0) for i in range(x.ndim)]) if missing else x


def pack_rows(
    k: Float[Array, "B T Nk K"],
    q: Float[Array, "B T Nk K"],
    recorded: Float[Array, "B 16 Nk K"],
    accepted: Int[Array, " B"],
) -> BFloat16[Array, "B Nk 144 K"]:
    """Per bfloat16 part the block's keys and queries, then all parts of the recorded keys.

    Rejected rows may hold anything: they are replaced, not multiplied by zero.
    """
    recorded = jnp.where(_kept(accepted)[..., None, None], recorded, 0.0)
    k_parts, q_parts, recorded_parts = (split(jnp.moveaxis(pad(x, 1), 1, 2)) for x in (k, q, recorded))
    pairs = [part for both in zip(k_parts, q_parts, strict=True) for part in both]
    # Concatenated once: XLA then makes the whole array in one pass.
    return jnp.concatenate([*pairs, *recorded_parts], axis=2)


def pack_gates(
    g: Float[Array, "B T Nv"],
    beta: Float[Array, "B T Nv"],
    recorded: Float[Array, "B 16 Nv"],
    accepted: Int[Array, " B"],
) -> Float[Array, "B Nv 4 32"]:
    """HIGH and LOW are repeated for keys and queries; FACTOR is -beta for the keys and 1 for the queries."""
    g, beta = (jnp.moveaxis(pad(x, 1), 1, 2) for x in (g, beta))  # [B, Nv, 16]
    recorded = jnp.moveaxis(jnp.where(_kept(accepted)[..., None], recorded, 0.0), 1, 2)
    high, low = split_decay(g, BLOCK)
    pairs = ((high, high), (low, low), (-beta, jnp.ones_like(beta)), (recorded, jnp.zeros_like(recorded)))
    return jnp.stack([jnp.concatenate(pair, axis=-1) for pair in pairs], axis=2)


def _kept(accepted: Int[Array, " B"]):
    return jnp.arange(BLOCK)[None, :] < accepted[:, None]  # [B, 16]
