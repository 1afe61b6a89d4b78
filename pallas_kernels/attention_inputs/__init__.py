"""From the projections of a block to what its attention reads: normed, rotated heads, and keys and values in caches.

Each head of queries and keys goes through its norm (`RowNorm`, over the head) and is turned by its row's position
(`Rope`); values stay as they are.

rotate_heads       heads in arrays of their own
rotate_and_store   the same, with keys and values in the rows of a cache
"""

from pallas_kernels.attention_inputs.api import rotate_and_store, rotate_heads
from pallas_kernels.attention_inputs.heads import Heads

__all__ = ["Heads", "rotate_and_store", "rotate_heads"]
