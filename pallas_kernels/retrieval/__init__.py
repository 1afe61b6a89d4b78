"""Retrieval: the best few tokens of a large vocabulary for each draft row.

A row-scaled float8 (e4m3) copy of the output head scores the whole vocabulary cheaply; its best `coarse` tokens are
scored again with the original head and the best `keep` of those remain. The float8 pass does not promise the true
best `keep`: it shapes proposals only, never what the target emits.
"""

from pallas_kernels.retrieval.reference import retrieve_reference
from pallas_kernels.retrieval.xla import CoarseHead, quantize_head, retrieve, retrieve_direct

__all__ = ["CoarseHead", "quantize_head", "retrieve", "retrieve_direct", "retrieve_reference"]
