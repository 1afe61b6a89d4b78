"""The best tokens of a row without a sort of the vocabulary, and their scores by the original head.

The vocabulary is cut into tiles of 64 tokens, and the best score of each tile is known. The `count` best tokens, in the
order (score descending, id ascending), all lie in the `count` tiles that come first in the order (best score
descending, tile ascending). For suppose that a token x lies in a tile X outside these. Each of them, say Y, holds a
token y with Y's best score. Y comes before X, so either y scores higher than X's best and thereby than x; or y scores
the same as X's best, which is at least x's score, and Y < X makes y's id the lower one. Either way y comes before x.
Those are `count` tokens before x, so x is not among the best `count`.

Of 248320 tokens, 3880 tile scores and then 128 * 64 token scores are sorted.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

TILE = 64


def best_tokens(
    scores: Float[Array, "R tiles 64"], tile_scores: Float[Array, "R tiles"], count: int
) -> Int[Array, "R k"]:
    """Ids of the `count` best tokens of each row, best first; the lower id wins a tie.

    `tile_scores` is the maximum of each tile. Tokens past the vocabulary's end score -inf and come after all others.
    """
    rows, tiles, _ = scores.shape
    if tiles <= count:
        return jax.lax.top_k(scores.reshape(rows, -1), count)[1]  # every tile is chosen; top_k is stable
    tile_ids = jax.lax.broadcasted_iota(jnp.int32, (rows, tiles), 1)
    tile_ids = _descending(tile_scores, tile_ids)[1][:, :count]
    scores = jnp.take_along_axis(scores, tile_ids[:, :, None], axis=1, mode="promise_in_bounds")
    ids = tile_ids[:, :, None] * TILE + jnp.arange(TILE, dtype=jnp.int32)
    return _descending(scores.reshape(rows, -1), ids.reshape(rows, -1))[1][:, :count]


def rescore(
    h: Float[Array, "R H"], head: Float[Array, "V H"], ids: Int[Array, "R n"], keep: int
) -> tuple[Int[Array, "R k"], Float[Array, "R k"]]:
    """The best `keep` of each row's `ids` by products with the original head, summed in float32, and their scores.

    Written as a sum of products and not as a matrix product: XLA reads the gathered rows inside the sum's own loop,
    where a library's matrix product would want a copy of them.
    """
    rows = head.at[ids].get(mode="promise_in_bounds").astype(jnp.float32)  # [R, n, H]
    scores = jnp.sum(h.astype(jnp.float32)[:, None, :] * rows, axis=-1)
    best, best_ids = _descending(scores, ids)
    return best_ids[:, :keep], best[:, :keep]


def _descending(scores, ids):
    """Both sorted by (score descending, id ascending). The pairs are distinct: an unstable sort has one result."""
    negative, ids = jax.lax.sort((-scores, ids), num_keys=2, is_stable=False)
    return -negative, ids
