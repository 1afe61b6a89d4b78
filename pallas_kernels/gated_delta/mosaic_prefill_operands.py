"""What the two prefill kernels hand over, and the gates that the first one starts from.

Rows go in chunks of CHUNK. With G the cumulative sum of g inside a chunk and S the state before it, the residual rows
r = v - exp(G) S k decide all the rest (T = (I + A)^-1, see xla.py, and P[i, j] = exp(G_i - G_j) (q_i . k_j), j <= i):

    d = T (beta r)      o = exp(G) S q + P d      S' = exp(G_last) S + sum_j exp(G_last - G_j) d_j k_j^T

So one matrix per chunk and value head, the mixer, takes r to the weighted deltas and to P d in a single product.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, BFloat16, Float

from pallas_kernels.gated_delta.log_decay import split_decay

# Keys and queries of a chunk together fill the 64 rows of one wgmma.
CHUNK = 32
# Rows of the table of gates. G is a sum of two (see log_decay.py). The last three repeat earlier ones: a value that is
# wanted in two register layouts is read from two places, or the search for layouts does not end.
HIGH, LOW, COEFFICIENT, WEIGHT, RETAIN, ROW_HIGH, ROW_LOW, ROW_BETA = range(8)
GATES = 8


@functools.partial(jax.tree_util.register_dataclass, data_fields=["keys_queries", "mixers"], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class ChunkOperands:
    """Matrices for the tensor cores, each as three bfloat16 parts, one below the other; C is CHUNK."""

    keys_queries: BFloat16[Array, "B Nk chunks 3*2C K"]  # per part C rows of k, then C rows of q
    mixers: BFloat16[Array, "B Nv chunks 3*C 2C"]  # residual row -> C weighted delta rows, C output rows


def pad_rows(x: Float[Array, "B T ..."]) -> Float[Array, "B padded ..."]:
    """float32 and whole chunks; rows of zeros have g = beta = 0 and change nothing."""
    rows = [(0, 0), (0, -x.shape[1] % CHUNK)]
    return jnp.pad(x.astype(jnp.float32), rows + [(0, 0)] * (x.ndim - 2))


def chunk_gates(
    g: Float[Array, "B padded Nv"], beta: Float[Array, "B padded Nv"]
) -> Float[Array, "B Nv chunks GATES 2C"]:
    """Factors of a chunk: one per column of [keys | queries] or of the mixer, or one per row."""

    def by_chunk(x):
        return jnp.moveaxis(x.reshape(x.shape[0], -1, CHUNK, x.shape[2]), 3, 1)

    beta = by_chunk(beta)
    high, low = (jnp.cumsum(x, axis=-1) for x in split_decay(by_chunk(g), CHUNK))
    onward = jnp.exp((high[..., -1:] - high) + (low[..., -1:] - low))
    one = jnp.ones_like(beta)
    rows = {
        HIGH: (high, high),
        LOW: (low, low),
        COEFFICIENT: (-beta, one),
        WEIGHT: (onward, one),
        RETAIN: (jnp.exp(high + low), one),
        ROW_HIGH: (high, high),
        ROW_LOW: (low, low),
        ROW_BETA: (beta, beta),
    }
    return jnp.stack([jnp.concatenate(rows[row], axis=-1) for row in range(GATES)], axis=-2)
