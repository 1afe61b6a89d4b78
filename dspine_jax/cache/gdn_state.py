"""State of one gated-delta-net layer, and the deferred fold.

A block of draft tokens is read without touching the committed state: it leaves records (k, d, g and the inputs of
the convolution). How many of its rows were accepted is known only afterwards and is stored once for all layers, as
`TargetCache.pending`; the next read folds that prefix.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pallas_kernels.gated_delta import Records, take_rows


@functools.partial(jax.tree_util.register_dataclass, data_fields=["state", "records", "conv"], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class GDNState:
    """Committed recurrent state, the last block's records, and the convolution's recent inputs."""

    state: Float[Array, "B Nv V K"]  # float32, before the recorded rows
    records: Records  # R rows
    conv: Float[Array, "B R+w channels"]  # w = kernel - 1 rows before the block, then the block's rows

    @staticmethod
    def zeros(
        slots: int,
        rows: int,
        *,
        key_heads: int,
        value_heads: int,
        key_dim: int,
        value_dim: int,
        kernel: int,
        dtype,
    ) -> "GDNState":
        channels = 2 * key_heads * key_dim + value_heads * value_dim
        return GDNState(
            state=jnp.zeros((slots, value_heads, value_dim, key_dim), jnp.float32),
            records=Records(
                k=jnp.zeros((slots, rows, key_heads, key_dim), jnp.float32),
                d=jnp.zeros((slots, value_heads, value_dim, rows), jnp.float32),
                g=jnp.zeros((slots, rows, value_heads), jnp.float32),
            ),
            conv=jnp.zeros((slots, rows + kernel - 1, channels), dtype),
        )

    def conv_window(self, pending: Int[Array, " B"], width: int) -> Float[Array, "B w channels"]:
        """The `width` inputs just before the next row, after `pending` recorded rows were accepted."""
        return take_rows(self.conv, pending, width)
