"""The drafted chain of a sampled request, with the law that each proposal was really drawn from.

q_t(. | u) = softmax over the candidates of s_t(u, .) / T after the request's filters, and the chain is drawn with the
request's own numbers. The verifier is exact for whatever q it is given; what matters is that q is the law of the
draw, so the very row that the draw used is kept.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from dspine_jax.sampling.draws import Purpose, choose, gumbels, row_keys
from dspine_jax.sampling.state import Sampling


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["tokens", "candidates", "q", "confidence"], meta_fields=[]
)
@dataclasses.dataclass(frozen=True)
class Draft:
    """Proposals for the T-1 rows after the anchor."""

    tokens: Int[Array, "B T-1"]
    candidates: Int[Array, "B T-1 k"]  # different tokens in each row
    q: Float[Array, "B T-1 k"]  # of the candidates, given the proposal before; all other tokens have none
    confidence: Float[Array, "B T-1"]  # greatest probability of the row at temperature 1, whatever its token


def draw_chain(
    scores: Float[Array, "B T-1 k k"],
    candidates: Int[Array, "B T-1 k"],
    sampling: Sampling | None,
    *,
    position: Int[Array, " B"],
    emitted: Int[Array, " B"],
    stop_ids: Int[Array, "B K"],
) -> Draft:
    """Draws v_t from q_t(. | v_{t-1}); without sampling every row takes its best candidate.

    `scores` [b, t, u, v] are true logits up to a constant of each row; `position` is the anchor's. For every
    predecessor the choice is made at once, so that the serial part only follows indices.
    """
    batch, rows, keep = candidates.shape
    if sampling is None:
        best = jnp.argmax(scores, axis=-1).astype(jnp.int32)
        q = jax.nn.one_hot(best, keep, dtype=scores.dtype)
    else:
        q = sampling.proposal_law(scores, candidates, emitted, stop_ids)
        # Row t + 1 of the block is what proposal t fills.
        keys = row_keys(sampling.seed, position, rows + 1, Purpose.DRAFT)[:, 1:]
        best = choose(q, gumbels(keys, keep)[:, :, None])
    chosen = follow(best)
    before = jnp.concatenate([jnp.zeros((batch, 1), chosen.dtype), chosen[:, :-1]], axis=1)

    def along(x):  # the row of the predecessor that was really chosen
        return jnp.take_along_axis(x, before[:, :, None, None], axis=2)[:, :, 0]

    return Draft(
        tokens=jnp.take_along_axis(candidates, chosen[..., None], axis=-1)[..., 0],
        candidates=candidates,
        q=along(q),
        confidence=jnp.max(jax.nn.softmax(along(scores), axis=-1), axis=-1),
    )


def follow(best: Int[Array, "B T-1 k"]) -> Int[Array, "B T-1"]:
    """Indices along the chain, when row t takes candidate best[t, u] after candidate u; row 0 has one predecessor."""

    def step(chosen, row):
        chosen = jnp.take_along_axis(row, chosen[:, None], axis=1)[:, 0]
        return chosen, chosen

    start = jnp.zeros(best.shape[0], best.dtype)
    return jnp.moveaxis(jax.lax.scan(step, start, jnp.moveaxis(best, 1, 0))[1], 0, 1)
