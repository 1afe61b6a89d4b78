"""What the operations take: the heads that lie in the rows of a projection."""

import dataclasses
import functools

import jax
from jaxtyping import Array, Float

from pallas_kernels.row_norm import RowNorm


@functools.partial(jax.tree_util.register_dataclass, data_fields=["rows", "norm"], meta_fields=["count", "dim"])
@dataclasses.dataclass(frozen=True)
class Heads:
    """`count` heads of `dim` side by side in each row, and the norm that each of them gets before it is rotated.

    A head's place may be wider than the head: the gate that follows a query is passed over.
    """

    rows: Float[Array, "B T W"]
    norm: RowNorm | None  # None: the heads stay as they are
    count: int
    dim: int

    @property
    def place(self) -> int:
        """From one head to the next."""
        return self.rows.shape[-1] // self.count

    @property
    def split(self) -> Float[Array, "B T N D"]:
        """Each head by itself."""
        return self.rows.reshape(*self.rows.shape[:2], self.count, self.place)[..., : self.dim]
