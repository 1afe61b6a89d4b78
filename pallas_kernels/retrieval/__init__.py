"""Retrieval: the best few tokens of a large vocabulary for each draft row.

A row-scaled float8 (e4m3) copy of the output head scores the whole vocabulary cheaply; its best `coarse` tokens are
scored again with the original head and the best `keep` of those remain:

    head[v] ~ values[v] * scale[v]
    coarse(r) = the `coarse` first v by (h[r] . values[v] * scale[v] descending, v ascending)
    result(r) = the `keep` first v of coarse(r) by (h[r] . head[v] in float32 descending, v ascending)

The float8 pass does not promise the true best `keep`: it shapes proposals only, never what the target emits.
"""

from pallas_kernels.retrieval.api import retrieve
from pallas_kernels.retrieval.coarse_head import CoarseHead, quantize_head
from pallas_kernels.retrieval.reference import retrieve_reference
from pallas_kernels.retrieval.tiles import Tiles, candidate_tiles, default_tiles
from pallas_kernels.retrieval.xla import retrieve_direct

__all__ = [
    "CoarseHead",
    "Tiles",
    "candidate_tiles",
    "default_tiles",
    "quantize_head",
    "retrieve",
    "retrieve_direct",
    "retrieve_reference",
]
