"""Everything that one batch of requests carries from cycle to cycle."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from dspine_jax.cache.draft_ring import DraftCache
from dspine_jax.cache.slots import clear_slots
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
        "failed",
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
    limit: Int[Array, " B"]  # a slot is done when it has emitted this many; 0 marks a slot that must not run
    stop_ids: Int[Array, "B K"]  # padded with NO_TOKEN
    stopped: Bool[Array, " B"]  # the last emitted token is a stop id
    failed: Bool[Array, " B"]  # some number of the slot's passes was not finite: nothing more is emitted
    cycles: Int[Array, " B"]  # target passes after the prompt's
    accepted: Int[Array, "B capacity"]  # proposals that the target agreed with, per cycle
    target_rows: Int[Array, " B"]  # rows of these passes
    sampling: Sampling | None = None  # None: all greedy, and no logit is changed
    logprobs: LogprobBuffer | None = None
    width_seconds: Float[Array, " W"] | None = None  # cost of each width when cycles choose theirs

    @property
    def done(self) -> Bool[Array, " B"]:
        """Slots that emit nothing more."""
        return self.stopped | self.failed | (self.emitted >= self.limit)

    def fail(self, bad: Bool[Array, " B"]) -> "LoopState":
        """Ends the marked slots, except those that are done already."""
        return dataclasses.replace(self, failed=self.failed | (bad & ~self.done))

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

    def drain(self) -> "LoopState":
        """Forgets what was emitted, after it was copied elsewhere: the next token fills entry 0 again.

        `limit` and the sampling's `min_tokens` count what is left from here on. With this, buffers of one cycle's
        tokens serve requests of any length.
        """
        return dataclasses.replace(
            self,
            emitted=jnp.zeros_like(self.emitted),
            limit=self.limit - self.emitted,
            cycles=jnp.zeros_like(self.cycles),
            sampling=None if self.sampling is None else self.sampling.drain(self.emitted),
        )

    def reset_slots(self, fresh: Bool[Array, " B"]) -> "LoopState":
        """Empties the marked slots: no trace of their requests is left but in pages, and nothing in them runs.

        The page table stays, and so do the pages: what they hold is overwritten before it counts. It must be finite,
        though, since attention may multiply it by zero.
        """

        def clear(x: Array, value: int = 0) -> Array:
            return clear_slots(x, fresh, value)

        return dataclasses.replace(
            self,
            target_cache=self.target_cache.reset_slots(fresh),
            draft_cache=None if self.draft_cache is None else self.draft_cache.reset_slots(fresh),
            last_hidden=clear(self.last_hidden),
            anchor=clear(self.anchor),
            position=clear(self.position),
            tokens=clear(self.tokens),
            emitted=clear(self.emitted),
            limit=clear(self.limit),
            stop_ids=clear(self.stop_ids, NO_TOKEN),
            stopped=clear(self.stopped),
            failed=clear(self.failed),
            cycles=clear(self.cycles),
            accepted=clear(self.accepted),
            target_rows=clear(self.target_rows),
            sampling=None if self.sampling is None else self.sampling.reset_slots(fresh),
            logprobs=None if self.logprobs is None else self.logprobs.reset_slots(fresh),
        )
