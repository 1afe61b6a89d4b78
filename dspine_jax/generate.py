"""Generation from lists of token ids: speculative, plain, and streamed cycle by cycle."""

import dataclasses
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Literal

import jax.numpy as jnp
import numpy as np

from dspine_jax import loop
from dspine_jax.buckets import PREFILL_CHUNK
from dspine_jax.loop.compiled import Plan
from dspine_jax.loop.state import LoopState
from dspine_jax.pair import Pair
from dspine_jax.request import Batch, check_requests, new_state

FinishReason = Literal["stop", "length"]


@dataclasses.dataclass(frozen=True)
class Stats:
    """How the tokens came about. The first token of a request comes from its prompt's pass and is in no cycle."""

    cycles: tuple[int, ...]  # target passes after the prompt's, per request
    accepted: tuple[np.ndarray, ...]  # per request and cycle: proposals that the target agreed with
    emitted: tuple[int, ...]  # tokens, per request
    block_size: int  # rows of a cycle's target pass

    @property
    def histogram(self) -> np.ndarray:
        """[block_size] cycles by number of accepted proposals."""
        return np.bincount(np.concatenate(self.accepted), minlength=self.block_size)

    @property
    def acceptance_length(self) -> float:
        """Tokens emitted per cycle, the target's own one included: 1.0 means that no proposal was accepted.

        NaN when there was no cycle.
        """
        cycles = sum(self.cycles)
        return (sum(self.emitted) - len(self.emitted)) / cycles if cycles else float("nan")


@dataclasses.dataclass(frozen=True)
class Generation:
    """The result of one call, in the order of its prompts."""

    tokens: list[np.ndarray]  # 1-D, int32; a stop token is kept
    finish_reason: list[FinishReason]
    stats: Stats


def generate(
    pair: Pair,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    stop_token_ids: Sequence[int] | None = None,
) -> Generation:
    """Greedy continuations by speculative decoding: the tokens that `generate_plain` gives, in fewer target passes.

    `stop_token_ids` None uses the model's end-of-text ids; an empty list never stops early. All cycles run in one
    compiled loop on the device. Raises ValueError for requests that cannot be served.
    """
    batch = check_requests(pair.target_config, prompts, max_new_tokens, stop_token_ids)
    state = new_state(batch, pair.target_config, pair.drafter_config, pair.dtype)
    state = prefill(pair.plan, pair.weights, state, batch)
    state = loop.run(pair.plan, pair.weights, state)
    return collect(batch, state, pair.drafter_config.block_size)


def generate_plain(
    pair: Pair,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    stop_token_ids: Sequence[int] | None = None,
) -> Generation:
    """The same arguments and result, one token per target pass: the oracle, and what speed is compared with."""
    batch = check_requests(pair.target_config, prompts, max_new_tokens, stop_token_ids)
    state = new_state(batch, pair.target_config, None, pair.dtype)
    state = prefill(pair.plain_plan, pair.weights, state, batch)
    state = loop.run_plain(pair.plain_plan, pair.weights, state)
    return collect(batch, state, 1)


class Stream:
    """One request, one dispatch per iteration: yields the tokens of each cycle as they are accepted.

    Iterating can stop at any time; `result()` then tells what was emitted so far.
    """

    def __init__(
        self,
        pair: Pair,
        prompt: Sequence[int],
        *,
        max_new_tokens: int,
        stop_token_ids: Sequence[int] | None = None,
        speculative: bool = True,
    ):
        self._batch = check_requests(pair.target_config, [prompt], max_new_tokens, stop_token_ids)
        self._block = pair.drafter_config.block_size if speculative else 1
        plan: Plan = pair.plan if speculative else pair.plain_plan
        step = loop.run_cycle if speculative else loop.run_plain_step
        self._step = partial(step, plan, pair.weights)
        drafter = pair.drafter_config if speculative else None
        state = new_state(self._batch, pair.target_config, drafter, pair.dtype)
        self._state = prefill(plan, pair.weights, state, self._batch)
        self._sent = 0

    def __iter__(self) -> Iterator[np.ndarray]:
        while True:
            # One transfer per cycle: the row of tokens, its length and whether it is complete.
            emitted, done = int(self._state.emitted[0]), bool(self._state.done[0])
            fresh = np.asarray(self._state.tokens[0])[self._sent : emitted]
            self._sent = emitted
            if len(fresh):
                yield fresh
            if done:
                return
            self._state = self._step(self._state)

    def result(self) -> Generation:
        """Tokens and statistics so far; the finish reason of an unfinished request reads "length"."""
        return collect(self._batch, self._state, self._block)


def prefill(plan: Plan, weights: object, state: LoopState, batch: Batch) -> LoopState:
    """Reads all prompts in chunks of a fixed size and emits each first token."""
    slots = state.position.shape[0]
    for start in range(0, batch.longest, PREFILL_CHUNK):
        ids = np.zeros((slots, PREFILL_CHUNK), np.int32)
        length = np.zeros(slots, np.int32)
        for slot, prompt in enumerate(batch.prompts):
            part = prompt[start : start + PREFILL_CHUNK]
            ids[slot, : len(part)] = part
            length[slot] = len(part)
        state = loop.prefill_chunk(plan, weights, state, jnp.asarray(ids), jnp.asarray(length))
    return loop.finish_prefill(plan, weights, state)


def collect(batch: Batch, state: LoopState, block_size: int) -> Generation:
    """Copies the results to the host and cuts them to their lengths."""
    count = len(batch.prompts)
    emitted, cycles = np.asarray(state.emitted)[:count], np.asarray(state.cycles)[:count]
    tokens, accepted = np.asarray(state.tokens), np.asarray(state.accepted)
    stopped = np.asarray(state.stopped)
    return Generation(
        tokens=[tokens[slot, : emitted[slot]] for slot in range(count)],
        finish_reason=["stop" if stopped[slot] else "length" for slot in range(count)],
        stats=Stats(
            cycles=tuple(int(c) for c in cycles),
            accepted=tuple(accepted[slot, : cycles[slot]] for slot in range(count)),
            emitted=tuple(int(e) for e in emitted),
            block_size=block_size,
        ),
    )
