"""The steps themselves, on bound models: pure functions from state to state."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from dspine_jax.cache.draft_ring import DraftCache
from dspine_jax.loop.state import LoopState
from dspine_jax.sampling.draft import Draft, draw_chain
from dspine_jax.sampling.draws import Purpose, choose, fold, gumbels
from dspine_jax.sampling.width import WHOLE_BLOCK, Verification, choose_rows
from dspine_jax.target import Target
from dspine_jax.target.rows import Rows


class Drafting(Protocol):
    """What the loop needs of a drafter. `dspine_jax.drafter.propose.Proposer` is the real one."""

    def propose(self, anchor: Int[Array, " B"], position: Int[Array, " B"], cache: DraftCache) -> Array:
        """Greedy proposals [B, T-1]."""
        ...

    def tables(
        self, anchor: Int[Array, " B"], position: Int[Array, " B"], cache: DraftCache
    ) -> tuple[Float[Array, "B T-1 k k"], Int[Array, "B T-1 k"]]:
        """Logits [b, t, u, v] of each row's candidates v after candidate u of the row before, and the candidates."""
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
    broken = jnp.any(~jnp.isfinite(hidden) & rows.valid[..., None], axis=(1, 2))
    return dataclasses.replace(
        state,
        # Unlike `fail`: a slot whose prompt is being read may not have begun to run.
        failed=state.failed | broken,
        target_cache=cache,
        draft_cache=_write_context(drafting, state, features, rows.positions, rows.valid),
        last_hidden=jnp.where((length > 0)[:, None], last, state.last_hidden),
        position=state.position + length,
    )


def first_token(target: Target, state: LoopState) -> LoopState:
    """Emits the token that follows the prompt, in slots that have emitted nothing yet."""
    logits = target.logits(state.last_hidden)[:, None]
    state = state.fail(_broken(logits))
    # The row that was read last is the prompt's last.
    choices = _plain_choices(state, logits, state.position - 1)
    return _emit(state, logits, choices, (state.emitted == 0).astype(state.emitted.dtype))[0]


def speculative_cycle(
    target: Target,
    drafting: Drafting,
    taps: Sequence[int],
    state: LoopState,
    verification: Verification = WHOLE_BLOCK,
) -> LoopState:
    """Draft a block, verify as much of it as `verification` says in one target pass, commit the accepted prefix."""
    if state.draft_cache is None:
        raise ValueError("this state was made for plain decoding: it has no draft cache")
    widths = verification.widths
    verify = functools.partial(_verify, target, drafting, taps, verification)
    if state.sampling is None and len(widths) < 2:
        # A greedy batch of fixed width asks the drafter for tokens only.
        tokens = drafting.propose(state.anchor, state.position, state.draft_cache)
        width = widths[0] if widths else 1 + tokens.shape[1]
        return verify(width, state, tokens, None, None)
    draft = _draft(drafting, state, max(widths, default=None))
    if len(widths) < 2:
        width = 1 + draft.tokens.shape[1]
        return verify(width, state, draft.tokens, draft, jnp.full_like(state.emitted, width))
    if state.width_seconds is None:
        raise ValueError("this state has no costs to choose a width by: give `new_state` width_seconds")
    alone = jnp.zeros_like(state.stopped) if state.sampling is None else state.sampling.alone
    index, rows = choose_rows(draft.confidence, ~state.done, alone, state.width_seconds, widths)
    branches = [functools.partial(verify, width) for width in widths]
    return jax.lax.switch(index, branches, state, draft.tokens, draft, rows)


def plain_step(target: Target, drafting: Drafting | None, taps: Sequence[int], state: LoopState) -> LoopState:
    """One token from one row: the same target pass with a block of one. Keeps a draft cache current if there is one."""
    state, rows, logits, features = read_block(target, taps, state, state.anchor[:, None])
    choices = _plain_choices(state, logits, state.position)
    return commit(drafting, state, rows, logits, features, choices, jnp.zeros_like(state.emitted))


def _draft(drafting, state, width) -> Draft:
    """Proposals for a block of `width` rows (None: all that the drafter makes), and what they were drawn from."""
    count = None if width is None else width - 1
    scores, candidates = drafting.tables(state.anchor, state.position, state.draft_cache)
    return draw_chain(
        scores[:, :count],
        candidates[:, :count],
        state.sampling,
        position=state.position,
        emitted=state.emitted,
        stop_ids=state.stop_ids,
    )


def _verify(target, drafting, taps, verification, width, state, tokens, draft, allowed):
    """A pass over the first `width` rows of the block, of which a sampled slot may use `allowed` [B]."""
    proposals = tokens[:, : width - 1].astype(state.anchor.dtype)
    block = jnp.concatenate([state.anchor[:, None], proposals], axis=1)
    state, rows, logits, features = read_block(target, taps, state, block)
    if state.sampling is not None:
        # A greedy token is the target's whatever was proposed; a sampled one also depends on the proposals' law.
        state = state.fail(jnp.any(~jnp.isfinite(draft.q), axis=(1, 2)))
    accepted, choices = verification.judge(state, proposals, logits, draft, allowed)
    return commit(drafting, state, rows, logits, features, choices.astype(state.anchor.dtype), accepted)


def _plain_choices(state, logits, position):
    """The token [B, 1] after a row [B, 1, V] that stands alone at `position`."""
    if state.sampling is None:
        return jnp.argmax(logits, axis=-1).astype(state.anchor.dtype)
    no_proposals = jnp.zeros((logits.shape[0], 0), state.anchor.dtype)
    law = state.sampling.law(logits, no_proposals, state.emitted, state.stop_ids)
    keys = fold(state.sampling.seed, position, jnp.zeros_like(position), Purpose.PLAIN)
    return choose(law[:, 0], gumbels(keys, logits.shape[-1]))[:, None].astype(state.anchor.dtype)


def read_block(
    target: Target, taps: Sequence[int], state: LoopState, block: Int[Array, "B T"]
) -> tuple[LoopState, Rows, Float[Array, "B T V"], Float[Array, "B T F"]]:
    """The target's pass over a block, nothing of it committed: the state, its rows, their logits and features."""
    # A slot that is done writes nothing, wherever its page table points.
    width = jnp.where(state.done, 0, block.shape[1]).astype(jnp.int32)
    rows = Rows.of(state.position, width, block.shape[1], commit=False)
    hidden, features, cache = target(block, rows, state.target_cache, taps)
    logits = target.logits(hidden)
    return dataclasses.replace(state, target_cache=cache).fail(_broken(logits)), rows, logits, features


def _broken(logits):
    """Slots [B] of which some row's scores are not finite.

    Whatever non-finite number a row wrote into a cache, the row has read it: it shows in the row's own scores.
    """
    return jnp.any(~jnp.isfinite(jnp.max(logits, axis=-1)), axis=-1)


def _emit(state, logits, choices, count):
    """Emits up to `count` [B] of the choices, and keeps what later rows and the result need to know of them."""
    start = state.emitted
    state, taken = state.emit(choices, count)
    kept = jnp.arange(choices.shape[1])[None, :] < taken[:, None]
    if state.sampling is not None:
        state = dataclasses.replace(state, sampling=state.sampling.count(choices, kept))
    if state.logprobs is not None:
        state = dataclasses.replace(state, logprobs=state.logprobs.record(logits, choices, start, kept))
    return state, taken, kept


def commit(
    drafting: Drafting | None,
    state: LoopState,
    rows: Rows,
    logits: Float[Array, "B T V"] | None,
    features: Float[Array, "B T F"],
    choices: Int[Array, "B T"],
    accepted: Int[Array, " B"],
) -> LoopState:
    """Emits the accepted run and commits exactly the rows whose successors were emitted.

    `logits` may be None when no request wants logprobs.
    """
    state = state.record_cycle(accepted, ~state.done, choices.shape[1])
    state, taken, kept = _emit(state, logits, choices, accepted + 1)
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
