"""Everything that one batch of requests carries from cycle to cycle."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from dspine_jax.cache.draft_ring import DraftCache
from dspine_jax.cache.target_cache import TargetCache
from dspine_jax.sampling.logprobs import LogprobBuffer
from dspine_jax.sampling.state import Sampling

NO_TOKEN = -1  # pads stop lists; equal to no id


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=[
        "target_cache",
        "draft_cache",
        "last_hidden",
        "anchor",
        "position",
        "tokens",
        "emitted",
        "limit",
        "stop_ids",
        "stopped",
        "cycles",
        "accepted",
        "target_rows",
        "sampling",
        "logprobs",
        "width_seconds",
    ],
    meta_fields=[],
)
@dataclasses.dataclass(frozen=True)
class LoopState:
    """B slots. `position` tokens of a slot are in the caches; the anchor, its last emitted token, is in none."""

    target_cache: TargetCache
    draft_cache: DraftCache | None  # None: plain decoding only
    last_hidden: Float[Array, "B H"]  # the prompt's last row, which scores the first token
    anchor: Int[Array, " B"]
    position: Int[Array, " B"]
    tokens: Int[Array, "B capacity"]  # emitted tokens; entries at and after `emitted` mean nothing
    emitted: Int[Array, " B"]
    limit: Int[Array, " B"]  # a slot is done when it has emitted this many; 0 marks an empty slot
    stop_ids: Int[Array, "B K"]  # padded with NO_TOKEN
    stopped: Bool[Array, " B"]  # the last emitted token is a stop id
    cycles: Int[Array, " B"]  # target passes after the prompt's
    accepted: Int[Array, "B capacity"]  # proposals that the target agreed with, per cycle
    target_rows: Int[Array, " B"]  # rows of these passes
    sampling: Sampling | None = None  # None: all greedy, and no logit is changed
    logprobs: LogprobBuffer | None = None
    width_seconds: Float[Array, " W"] | None = None  # cost of each width when cycles choose theirs

    @property
    def done(self) -> Bool[Array, " B"]:
        """Slots that emit nothing more."""
        return self.stopped | (self.emitted >= self.limit)

    def emit(self, run: Int[Array, "B T"], count: Int[Array, " B"]) -> tuple["LoopState", Int[Array, " B"]]:
        """Appends up to `count` tokens of `run` per slot, cut after a stop id and at the limit.

        Returns the state and how many were taken: 0 for a slot that is done; at least 1 for any other,
        if its `count` is.
        """
        offset = jnp.arange(run.shape[1])[None, :]
        is_stop = jnp.any(run[:, :, None] == self.stop_ids[:, None, :], axis=-1)
        first_stop = jnp.min(jnp.where(is_stop, offset, run.shape[1]), axis=1)
        taken = jnp.minimum(jnp.minimum(count, first_stop + 1), self.limit - self.emitted)
        taken = jnp.where(self.done, 0, taken)

        capacity = self.tokens.shape[1]
        column = jnp.where(offset < taken[:, None], self.emitted[:, None] + offset, capacity)
        slot = jnp.arange(run.shape[0])[:, None]
        last = jnp.take_along_axis(run, jnp.maximum(taken - 1, 0)[:, None], axis=1)[:, 0]
        state = dataclasses.replace(
            self,
            tokens=self.tokens.at[slot, column].set(run, mode="drop"),
            emitted=self.emitted + taken,
            stopped=self.stopped | ((taken > 0) & (first_stop < taken)),
            anchor=jnp.where(taken > 0, last, self.anchor),
        )
        return state, taken

    def record_cycle(self, accepted: Int[Array, " B"], active: Bool[Array, " B"], rows: int) -> "LoopState":
        """Counts one target pass of `rows` rows for the active slots."""
        slot = jnp.arange(accepted.shape[0])
        column = jnp.where(active, self.cycles, self.accepted.shape[1])
        return dataclasses.replace(
            self,
            cycles=self.cycles + active.astype(self.cycles.dtype),
            target_rows=self.target_rows + jnp.where(active, rows, 0).astype(self.target_rows.dtype),
            accepted=self.accepted.at[slot, column].set(accepted, mode="drop"),
        )
