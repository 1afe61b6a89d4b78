"""Tail: the last write of a draft block made again for each candidate predecessor, and scored for each candidate.

For position t with residual x before the last write, its magnitude r and code c (see bridge), predecessor u with
codebook vector E[u], receiver v, W the last write, g the final norm's weight:

    c_u = sqrt(C) E[u];   m(u) = sigmoid(G c + Gp c_u + b) * (A c_u);   y(u) = x + r W m(u)
    s(u, v) = (g * y(u) / rho(u)) . head[v],   rho(u) = sqrt(mean(y(u)^2) + eps)

All of it in float32 products: these scores are the proposal's distribution. `table_scores` gives rho(u) s(u, v) from
tables over the vocabulary, P[u] = [Gp c_u, A c_u] and Q[v] = W^T (g * head[v]): enough to choose the best v.
"""

from pallas_kernels.tail.api import tail_scores
from pallas_kernels.tail.reference import tail_reference
from pallas_kernels.tail.tables import predecessor_table, receiver_table, table_scores
from pallas_kernels.tail.tiles import Tiles, candidate_tiles, default_tiles
from pallas_kernels.tail.xla import refine

__all__ = [
    "Tiles",
    "candidate_tiles",
    "default_tiles",
    "predecessor_table",
    "receiver_table",
    "refine",
    "table_scores",
    "tail_reference",
    "tail_scores",
]
