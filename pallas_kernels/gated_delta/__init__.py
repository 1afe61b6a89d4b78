"""Gated delta rule: a linear recurrence over tokens with a matrix state per head.

One token updates the state S [V, K] of a value head, in float32 (g <= 0 is the log decay):

    S <- exp(g) S;   d = beta (v - S k);   S <- S + d k^T;   o = S q

`gated_delta_prefill` reads a long span whose length is known and returns the state after it.
`gated_delta_replay` folds the accepted prefix of an earlier block into the state and reads a new block without
committing it: the records (k, d, g) of a block let any prefix of it be folded later. `gated_delta_block` does this
from a layer's projections on, convolution and gates included.
"""

from pallas_kernels.gated_delta.api import gated_delta_prefill, gated_delta_replay
from pallas_kernels.gated_delta.block import gated_delta_block
from pallas_kernels.gated_delta.block_inputs import block_inputs, l2_norm
from pallas_kernels.gated_delta.records import Records, pad_rows, take_rows
from pallas_kernels.gated_delta.reference import gated_delta_recurrent
from pallas_kernels.gated_delta.xla import fold_records

__all__ = [
    "Records",
    "block_inputs",
    "fold_records",
    "gated_delta_block",
    "gated_delta_prefill",
    "gated_delta_recurrent",
    "gated_delta_replay",
    "l2_norm",
    "pad_rows",
    "take_rows",
]
