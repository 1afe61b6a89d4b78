"""Greedy tail: the last write refined by discrete candidates, then a serial choice along the block.

For position t, predecessor candidate u and receiver candidate v, s_t(u, v) = h_t(u) . head[v] with h_t(u) the row's
state after its last write was made with u's stored code. The chain is v_t = argmax_v s_t(v_{t-1}, v), v_0 = anchor.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from dspine_jax.drafter.model import Drafter, DraftStates
from pallas_kernels import tail
from pallas_kernels.tail import predecessor_table, receiver_table, tail_scores


@functools.partial(jax.tree_util.register_dataclass, data_fields=["predecessor", "receiver"], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class TailTables:
    """Vocabulary-wide factors of the greedy scores, built once from the weights."""

    predecessor: Float[Array, "V 2M"]  # [Gp c_u, A c_u]
    receiver: Float[Array, "V M"]  # Q[v] = W_L^T (g * head_v)


def direct_scores(
    drafter: Drafter,
    states: DraftStates,
    anchor: Int[Array, " B"],
    candidates: Int[Array, "B T-1 k"],
    head: Float[Array, "V H"],
) -> Float[Array, "B T-1 k k"]:
    """s[b, t, u, v] in float32. Position 0's predecessor is the anchor for every u."""
    return tail_scores(
        states.residual,
        states.magnitude,
        states.code,
        drafter.injection.codebook(predecessors(anchor, candidates)),
        head[candidates],
        drafter.last_write,
        drafter.norm.weight[...],
        drafter.injection.gates,
        eps=drafter.config.rms_norm_eps,
        implementation=drafter.implementation,
    )


def build_tables(drafter: Drafter, head: Float[Array, "V H"], dtype: jnp.dtype) -> TailTables:
    """P and Q of the factorised scores, computed in float32 and stored in `dtype`."""
    inj = drafter.injection
    return TailTables(
        predecessor=predecessor_table(inj.codebook.weight[...], inj.gates).astype(dtype),
        receiver=receiver_table(head, drafter.last_write, drafter.norm.weight[...]).astype(dtype),
    )


def table_scores(
    drafter: Drafter,
    tables: TailTables,
    states: DraftStates,
    anchor: Int[Array, " B"],
    candidates: Int[Array, "B T-1 k"],
    head: Float[Array, "V H"],
) -> Float[Array, "B T-1 k k"]:
    """rho_t(u) * s_t(u, v), from the tables.

    rho, the root mean square of the refined row, is one positive factor for all v: it changes no argmax.
    """
    return tail.table_scores(
        states.residual,
        states.magnitude,
        states.code,
        tables.predecessor[predecessors(anchor, candidates)],
        tables.receiver[candidates],
        head[candidates],
        drafter.norm.weight[...],
        drafter.injection.gates,
    )


def greedy_chain(scores: Float[Array, "B T-1 k k"], candidates: Int[Array, "B T-1 k"]) -> Int[Array, "B T-1"]:
    """The chosen tokens; among equal scores the first candidate wins."""
    chain = jnp.argmax(scores, axis=-1)  # [B, T-1, k]: best receiver for every predecessor
    # Row t's map follows that of row t-1, and so on from the first: maps of 1, 2, 4, .. rows are joined, in log2(T)
    # steps instead of T.
    start = jnp.broadcast_to(jnp.arange(chain.shape[2], dtype=chain.dtype), chain.shape)
    span = 1
    while span < chain.shape[1]:
        before = jnp.concatenate([start[:, :span], chain[:, :-span]], axis=1)
        chain = jnp.take_along_axis(chain, before, axis=-1)
        span *= 2
    return jnp.take_along_axis(candidates, chain[..., :1], axis=-1)[..., 0]


def predecessors(anchor: Int[Array, " B"], candidates: Int[Array, "B T-1 k"]) -> Int[Array, "B T-1 k"]:
    """The token before each row, for each candidate choice: the anchor, then the previous row's candidates."""
    first = jnp.broadcast_to(anchor[:, None, None], candidates[:, :1].shape)
    return jnp.concatenate([first, candidates[:, :-1]], axis=1)
