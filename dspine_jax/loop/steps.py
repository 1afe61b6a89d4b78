"""The steps themselves, on bound models: pure functions from state to state."""

import dataclasses
from collections.abc import Sequence
from typing import Protocol

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from dspine_jax.cache.draft_ring import DraftCache
from dspine_jax.loop.state import LoopState
from dspine_jax.target import Target
from dspine_jax.target.rows import Rows
from dspine_jax.verify import verify_greedy


class Drafting(Protocol):
    """What the loop needs of a drafter. `dspine_jax.drafter.propose.Proposer` is the real one."""

    def propose(self, anchor: Int[Array, " B"], position: Int[Array, " B"], cache: DraftCache) -> Array:
        """Proposals [B, T-1]."""
        ...

    def write_context(
        self,
        features: Float[Array, "B T F"],
        positions: Int[Array, "B T"],
        valid: Bool[Array, "B T"],
        cache: DraftCache,
    ) -> DraftCache:
        """The draft cache with the valid rows' features."""
        ...


def read_prompt(
    target: Target,
    drafting: Drafting | None,
    taps: Sequence[int],
    state: LoopState,
    ids: Int[Array, "B T"],
    length: Int[Array, " B"],
) -> LoopState:
    """One chunk of every slot's prompt; `length` 0 leaves a slot as it is."""
    rows = Rows.of(state.position, length, ids.shape[1], commit=True)
    hidden, features, cache = target(ids, rows, state.target_cache, taps)
    last = jnp.take_along_axis(hidden, jnp.maximum(length - 1, 0)[:, None, None], axis=1)[:, 0]
    return dataclasses.replace(
        state,
        target_cache=cache,
        draft_cache=_write_context(drafting, state, features, rows.positions, rows.valid),
        last_hidden=jnp.where((length > 0)[:, None], last, state.last_hidden),
        position=state.position + length,
    )


def first_token(target: Target, state: LoopState) -> LoopState:
    """Emits the token that follows the prompt, in slots that have emitted nothing yet."""
    choice = jnp.argmax(target.logits(state.last_hidden), axis=-1).astype(state.anchor.dtype)
    return state.emit(choice[:, None], (state.emitted == 0).astype(state.emitted.dtype))[0]


def speculative_cycle(target: Target, drafting: Drafting, taps: Sequence[int], state: LoopState) -> LoopState:
    """Draft a block, verify it in one target pass, commit the accepted prefix."""
    if state.draft_cache is None:
        raise ValueError("this state was made for plain decoding: it has no draft cache")
    proposals = drafting.propose(state.anchor, state.position, state.draft_cache)
    block = jnp.concatenate([state.anchor[:, None], proposals.astype(state.anchor.dtype)], axis=1)
    state, rows, logits, features = _read_block(target, taps, state, block)
    accepted, choices = verify_greedy(block[:, 1:], logits)
    return _commit(drafting, state, rows, features, choices, accepted)


def plain_step(target: Target, drafting: Drafting | None, taps: Sequence[int], state: LoopState) -> LoopState:
    """One token from one row: the same target pass with a block of one. Keeps a draft cache current if there is one."""
    state, rows, logits, features = _read_block(target, taps, state, state.anchor[:, None])
    choices = jnp.argmax(logits, axis=-1).astype(state.anchor.dtype)
    return _commit(drafting, state, rows, features, choices, jnp.zeros_like(state.emitted))


def _read_block(target, taps, state, block):
    width = jnp.full(block.shape[0], block.shape[1], jnp.int32)
    rows = Rows.of(state.position, width, block.shape[1], commit=False)
    hidden, features, cache = target(block, rows, state.target_cache, taps)
    return dataclasses.replace(state, target_cache=cache), rows, target.logits(hidden), features


def _commit(drafting, state, rows, features, choices, accepted):
    """Emits the accepted run and commits exactly the rows whose successors were emitted."""
    state = state.record_cycle(accepted, ~state.done)
    state, taken = state.emit(choices, accepted + 1)
    offset = jnp.arange(choices.shape[1])[None, :]
    kept = offset < taken[:, None]
    return dataclasses.replace(
        state,
        target_cache=state.target_cache.commit(taken),
        draft_cache=_write_context(drafting, state, features, rows.positions, kept),
        position=state.position + taken,
    )


def _write_context(drafting, state, features, positions, valid):
    if drafting is None or state.draft_cache is None:
        return state.draft_cache
    return drafting.write_context(features, positions, valid, state.draft_cache)
