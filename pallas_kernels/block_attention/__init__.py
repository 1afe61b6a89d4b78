"""Block attention: the few new rows of each slot read a long context and one another.

Row t of slot b stands at position start[b] + t. For query head n, which reads key/value head n K / N,

    o = sum_p w_p v_p,   w = softmax over the visible positions p of  q . k_p / sqrt(D)

with the softmax in float32. `paged_block_attention` reads keys and values of all positions, the new rows' own
included, from pages that slots share through a page table: position p is visible to row t if p <= start + t.
`ring_block_attention` reads the last positions before the block from a ring, position p in row p % R, and the block's
own rows, which the ring does not hold, beside it: p is visible if start + t - p < window, or if it lies in the block
and is not after the row, or anywhere in the block when attention is not causal.
"""

from pallas_kernels.block_attention.api import paged_block_attention, ring_block_attention
from pallas_kernels.block_attention.tiles import Geometry, Tiles, candidate_tiles, default_tiles, size_key
from pallas_kernels.block_attention.xla import grouped_attention, held_positions

__all__ = [
    "Geometry",
    "Tiles",
    "candidate_tiles",
    "default_tiles",
    "grouped_attention",
    "held_positions",
    "paged_block_attention",
    "ring_block_attention",
    "size_key",
]
