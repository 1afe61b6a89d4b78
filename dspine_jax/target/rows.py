"""The rows that one call of the target reads."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from pallas_kernels.implementation import Implementation


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["positions", "valid", "length"], meta_fields=["commit"]
)
@dataclasses.dataclass(frozen=True)
class Rows:
    """T consecutive rows per slot, of which the first `length` are real."""

    positions: Int[Array, "B T"]
    valid: Bool[Array, "B T"]
    length: Int[Array, " B"]
    commit: bool  # True: a prompt chunk, committed at once. False: a block, committed later by `TargetCache.commit`

    def implementation(self, chosen: Implementation | None) -> Implementation | None:
        """What an operation runs as whose kernel serves blocks: a prompt chunk's dense work is XLA's."""
        return "xla" if self.commit and chosen != "reference" else chosen

    @staticmethod
    def of(start: Int[Array, " B"], length: Int[Array, " B"], rows: int, *, commit: bool) -> "Rows":
        offset = jnp.arange(rows, dtype=jnp.int32)[None, :]
        return Rows(positions=start[:, None] + offset, valid=offset < length[:, None], length=length, commit=commit)
