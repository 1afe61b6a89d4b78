"""The public operation: checks, choice of implementation, and the two passes."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pallas_kernels.implementation import Implementation, resolve
from pallas_kernels.retrieval import tiles as sizes
from pallas_kernels.retrieval.coarse_head import CoarseHead
from pallas_kernels.retrieval.mosaic_gpu import coarse_scores
from pallas_kernels.retrieval.queries import split_queries
from pallas_kernels.retrieval.reference import retrieve_coarse_reference
from pallas_kernels.retrieval.selection import best_tokens, rescore
from pallas_kernels.retrieval.tiles import Tiles
from pallas_kernels.retrieval.xla import coarse_scores_xla
from pallas_kernels.shared_memory import LINES
from pallas_kernels.tuning import tuned_tiles

ALIGNMENT = 16  # bytes, of a row that TMA can read


def retrieve(
    h: Float[Array, "*R H"],
    head: Float[Array, "V H"],
    coarse_head: CoarseHead,
    *,
    coarse: int = 128,
    keep: int = 16,
    implementation: Implementation | None = None,
    tiles: Tiles | None = None,
) -> tuple[Int[Array, "*R k"], Float[Array, "*R k"]]:
    """Token ids and float32 scores of the best `keep` tokens, best first; the lower id wins a tie.

    Two passes: `coarse` tokens (at most V) by float8 scores, then the best `keep` of them by the original head. A row
    of NaN gives ids in range and disturbs no other row.

    The Mosaic GPU kernel wants bfloat16 h, a float8 (e4m3) coarse head, a vocabulary that is a multiple of 8 and a
    hidden size that is a multiple of 128 (of 16 below that); `tiles` are its sizes. Raises ValueError for shapes that
    do not belong together, and for a named implementation that cannot run.
    """
    _check(h, head, coarse_head, coarse, keep)
    rows = h.reshape(-1, h.shape[-1])
    coarse = min(coarse, head.shape[0])
    chosen = resolve("retrieval", implementation, tuple(_obstacles(rows, coarse_head, tiles)))
    if chosen == "reference":
        ids, scores = retrieve_coarse_reference(rows, head, coarse_head, coarse=coarse, keep=keep)
    else:
        if chosen == "xla":
            token_scores, tile_scores = coarse_scores_xla(rows, coarse_head)
        else:
            token_scores, tile_scores = _coarse_scores_mosaic_gpu(rows, coarse_head, tiles)
        coarse_ids = best_tokens(token_scores, tile_scores, coarse)
        coarse_ids = jnp.minimum(coarse_ids, head.shape[0] - 1)  # a row of NaN may choose tokens past the end
        ids, scores = rescore(rows, head, coarse_ids, keep)
    return ids.reshape(*h.shape[:-1], keep), scores.reshape(*h.shape[:-1], keep)


def _coarse_scores_mosaic_gpu(h, coarse_head, tiles):
    """The kernel's scores; their scale per row is left out, a positive factor that changes no order."""
    parts = []
    most = sizes.most_rows()
    for start in range(0, h.shape[0], most):
        part = h[start : start + most]
        padded = sizes.padded_rows(part.shape[0])
        queries, _ = split_queries(jnp.pad(part, ((0, padded - part.shape[0]), (0, 0))))
        chosen = tiles or tuned_tiles("retrieval", f"rows={padded}", sizes.default_tiles(padded))
        scores, best = coarse_scores(queries, coarse_head, chosen)
        parts.append((scores[: part.shape[0]], best[: part.shape[0]]))
    return tuple(jnp.concatenate(of_parts) for of_parts in zip(*parts, strict=True)) if len(parts) > 1 else parts[0]


def _obstacles(h, coarse_head, tiles):
    values = coarse_head.values
    if h.dtype != jnp.bfloat16:
        yield f"h is {h.dtype}, wanted bfloat16"
    if values.dtype != jnp.float8_e4m3fn:
        yield f"the coarse head is {values.dtype}, wanted float8_e4m3fn"
    vocabulary, hidden = values.shape
    if hidden % (ALIGNMENT if hidden < sizes.CHUNK else sizes.CHUNK):
        yield f"the hidden size is {hidden}, wanted a multiple of {sizes.CHUNK}, or one of {ALIGNMENT} below that"
    if vocabulary % LINES:
        yield f"the vocabulary has {vocabulary} tokens, wanted a multiple of {LINES}"
    if not h.size:
        yield "there are no rows"
    elif tiles is not None:
        yield from sizes.obstacles(tiles, sizes.padded_rows(min(h.shape[0], sizes.most_rows())))


def _check(h, head, coarse_head, coarse, keep):
    if head.ndim != 2 or h.shape[-1:] != head.shape[1:]:
        raise ValueError(f"h is {h.shape} and the head {head.shape}, wanted [..., H] and [V, H]")
    values, scale = coarse_head.values, coarse_head.scale
    if values.shape != head.shape or scale.shape != head.shape[:1]:
        raise ValueError(
            f"the coarse head has values {values.shape} and scales {scale.shape}, wanted {head.shape} and"
            f" {head.shape[:1]}: make it from this head with quantize_head"
        )
    if not 1 <= keep <= min(coarse, head.shape[0]):
        raise ValueError(
            f"keep is {keep}, wanted 1 to {min(coarse, head.shape[0])}: `coarse` and the vocabulary's size"
        )
