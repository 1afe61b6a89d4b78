"""What a slot carries at the end of a whole chunk of its prompt, and slots that go on from there."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from dspine_jax.cache.draft_ring import DraftCache
from dspine_jax.cache.gdn_state import GDNState
from dspine_jax.loop.state import LoopState


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["states", "windows", "draft_cache", "last_hidden", "position"],
    meta_fields=[],
)
@dataclasses.dataclass(frozen=True)
class Snapshot:
    """All that later rows depend on but the keys and values in pages; B slots, or B snapshots.

    It holds for a slot that has read prompt only, so that no rows are pending.
    """

    states: tuple[Float[Array, "B Nv V K"], ...]  # of each gated-delta-net layer
    windows: tuple[Float[Array, "B w channels"], ...]  # the convolutions' last inputs
    draft_cache: DraftCache | None
    last_hidden: Float[Array, "B H"]
    position: Int[Array, " B"]

    @staticmethod
    def of(state: LoopState) -> "Snapshot":
        """Of every slot."""
        layers = [layer for layer in state.target_cache.layers if isinstance(layer, GDNState)]
        return Snapshot(
            states=tuple(layer.state for layer in layers),
            windows=tuple(layer.conv[:, : _window(layer)] for layer in layers),
            draft_cache=state.draft_cache,
            last_hidden=state.last_hidden,
            position=state.position,
        )

    def restore(self, state: LoopState) -> LoopState:
        """The state, whose slots were just emptied, with one snapshot in each; their page tables must fit it."""
        index, layers = 0, []
        for layer in state.target_cache.layers:
            if isinstance(layer, GDNState):
                conv = layer.conv.at[:, : _window(layer)].set(self.windows[index])
                layer = dataclasses.replace(layer, state=self.states[index], conv=conv)
                index += 1
            layers.append(layer)
        return dataclasses.replace(
            state,
            target_cache=dataclasses.replace(state.target_cache, layers=tuple(layers)),
            draft_cache=self.draft_cache,
            last_hidden=self.last_hidden,
            position=self.position,
        )

    def empty(self, count: int) -> "Snapshot":
        """Room for `count` snapshots of this shape, all zeros."""
        return jax.tree.map(lambda x: jnp.zeros((count, *x.shape[1:]), x.dtype), self)

    def take(self, index: Int[Array, " n"]) -> "Snapshot":
        """Some of them."""
        return jax.tree.map(lambda x: x[index], self)

    def put(self, index: Int[Array, " n"], other: "Snapshot") -> "Snapshot":
        """With others in these places, all different."""
        return jax.tree.map(lambda x, y: x.at[index].set(y, unique_indices=True), self, other)


def _window(layer: GDNState) -> int:
    """Rows of the convolution's input that come before a block."""
    return layer.conv.shape[1] - layer.records.g.shape[1]
