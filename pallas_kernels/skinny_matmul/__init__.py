"""What the kernels share that multiply a few rows with streamed weights: out[T, O] = x[T, K] weight[O, K]^T.

One warpgroup per block. The rows are the M operand of a product, 64 at a time; the outputs of a tile are its N operand,
which may be as narrow as 8, so that even a small weight is spread over most multiprocessors. Results come out in the
rows' own order and nothing needs a transpose. Rows that pad a 64-row operand are never loaded: a row of a product
depends on its own row only, and theirs are not stored.
"""

from pallas_kernels.skinny_matmul.operands import BLOCK, operand, stages_that_fit, swizzle_bytes
from pallas_kernels.skinny_matmul.ring import stream

__all__ = ["BLOCK", "operand", "stages_that_fit", "stream", "swizzle_bytes"]
