"""The drafter's loss over blocks anchored in the target's own text."""

import dataclasses

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from dspine_jax.cache.draft_ring import DraftCache, DraftRing
from dspine_jax.drafter import Drafter
from pallas_kernels.block_attention import held_positions


@dataclasses.dataclass(frozen=True)
class Teacher:
    """What the target says about a batch of sequences."""

    embedding: Float[Array, "V H"]
    head: Float[Array, "V H"]
    features: Float[Array, "B T F"]
    logits: Float[Array, "B T V"]  # row t scores token t + 1


def block_losses(
    drafter: Drafter,
    teacher: Teacher,
    ids: Int[Array, "B T"],
    anchors: Int[Array, "B A"],
    *,
    position_decay: float,
) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
    """Mean of the parallel rows' loss and of the teacher-forced tail's, and both as metrics.

    Each is half cross-entropy against the token that followed and half against the target's distribution, weighted
    by exp(-(k - 1) / position_decay) over the block's rows k = 1 .. block_size - 1: a row counts only if all rows
    before it are right.
    """
    cfg = drafter.config
    batch, count = anchors.shape
    rows = cfg.block_size
    offset = jnp.arange(rows)
    places = anchors[:, :, None] + offset  # [B, A, rows]
    labels = jnp.take_along_axis(ids[:, None], places, axis=2).reshape(batch * count, rows)
    positions = places.reshape(batch * count, rows)
    says = jnp.take_along_axis(teacher.logits[:, None], places[..., :-1, None], axis=2)
    says = jax.nn.softmax(says.reshape(batch * count, rows - 1, -1))

    context = _contexts(drafter, teacher.features, anchors)
    masked = jnp.where(offset == 0, labels, cfg.mask_token_id)
    x = teacher.embedding[masked]
    states = drafter.run_block(x, positions, labels[:, 0], context, bridged=True)
    refined = drafter.refine(states, labels[:, :-1, None])[:, :, 0]

    weight = jnp.exp(-(offset[1:] - 1) / position_decay)
    metrics = {}
    for name, hidden in (("parallel", states.hidden), ("tail", refined)):
        logits = jnp.einsum("nth,vh->ntv", hidden, teacher.head)
        hard = optax.softmax_cross_entropy_with_integer_labels(logits, labels[:, 1:])
        soft = optax.softmax_cross_entropy(logits, says)
        metrics[name] = jnp.sum(weight * jnp.mean(0.5 * (hard + soft), axis=0)) / jnp.sum(weight)
        hits = jnp.cumprod(jnp.argmax(logits, axis=-1) == labels[:, 1:], axis=1)
        metrics[f"{name}_length"] = 1 + jnp.mean(jnp.sum(hits, axis=1))
    return 0.5 * (metrics["parallel"] + metrics["tail"]), metrics


def _contexts(drafter: Drafter, features: Float[Array, "B T F"], anchors: Int[Array, "B A"]) -> DraftCache:
    """The ring of each block, [B * A, R] rows, filled from its sequence as a loop at that anchor would have it."""
    batch, length, _ = features.shape
    positions = jnp.broadcast_to(jnp.arange(length), (batch, length))
    sequence = jnp.repeat(jnp.arange(batch), anchors.shape[1])[:, None]
    rings = []
    for layer, (k, v) in zip(drafter.layers, drafter.context(features, positions), strict=True):
        ring = length if layer.self_attn.window is None else min(layer.self_attn.window, length)
        # A row that holds no position is invisible whatever it contains.
        row = jnp.maximum(held_positions(anchors.reshape(-1), ring), 0)
        rings.append(DraftRing(k=k[sequence, row], v=v[sequence, row]))
    return DraftCache(layers=tuple(rings))
