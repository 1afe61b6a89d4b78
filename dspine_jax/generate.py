"""Generation from lists of token ids: speculative, plain, and streamed cycle by cycle.

All three take the fields of `SamplingParams` as keyword arguments, the same for all prompts, or `sampling`, a list of
`SamplingParams`, one per prompt. The default is greedy.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Literal, Unpack

import jax
import jax.numpy as jnp
import numpy as np

from dspine_jax import loop
from dspine_jax.buckets import PREFILL_CHUNK
from dspine_jax.loop.compiled import Plan
from dspine_jax.loop.state import LoopState
from dspine_jax.measure import measure_widths
from dspine_jax.pair import Pair
from dspine_jax.request import Batch, Prompt, check_requests, new_state
from dspine_jax.sampling.logprobs import Logprobs
from dspine_jax.sampling.params import SamplingFields, SamplingParams, per_request
from dspine_jax.sampling.width import Method, Verification, WidthCosts, check_width

FinishReason = Literal["stop", "length"]


@dataclasses.dataclass(frozen=True)
class Stats:
    """How the tokens came about. The first token of a request comes from its prompt's pass and is in no cycle."""

    cycles: tuple[int, ...]  # target passes after the prompt's, per request
    accepted: tuple[np.ndarray, ...]  # per request and cycle: proposals that the target agreed with
    emitted: tuple[int, ...]  # tokens, per request
    block_size: int  # rows of a whole block: the anchor and its proposals
    target_rows: tuple[int, ...] = ()  # rows of the cycles' target passes, per request
    width_costs: WidthCosts | None = None  # what the cycles chose their widths by; None: the width was fixed

    @property
    def rows_per_cycle(self) -> float:
        """Rows of a target pass on average; NaN when there was no cycle."""
        cycles = sum(self.cycles)
        return sum(self.target_rows) / cycles if cycles else float("nan")

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
    seeds: list[int | None]  # of sampled requests: the same seed gives the same tokens again
    logprobs: list[Logprobs | None]  # None where the request wants none


def generate(
    pair: Pair,
    prompts: Sequence[Prompt],
    *,
    max_new_tokens: int,
    stop_token_ids: Sequence[int] | None = None,
    sampling: Sequence[SamplingParams] | None = None,
    verification: Method = "token",
    verify_width: int | Literal["auto"] | None = None,
    width_costs: WidthCosts | None = None,
    **fields: Unpack[SamplingFields],
) -> Generation:
    """Continuations by speculative decoding: what `generate_plain` gives, in fewer target passes.

    Greedy requests get the same tokens, sampled ones tokens of the same law. `stop_token_ids` None uses the model's
    end-of-text ids; an empty list never stops early. All cycles run in one compiled loop on the device.

    `verification` "block" accepts at least as much of sampled proposals as "token" on average. `verify_width` is the
    number of block rows that the target runs, by default all; "auto" chooses in each cycle, by `width_costs`
    (`measure_widths`), which are measured first when none are given. The tokens of a seeded request depend on the
    width, and on the costs, but on no other request. Prompts that share a seed share their random numbers.

    Raises ValueError for requests that cannot be served.
    """
    batch = _batch(pair, prompts, max_new_tokens, stop_token_ids, sampling, fields)
    how, costs = _verification(pair, batch, verification, verify_width, width_costs)
    state = _speculative_state(pair, batch, costs)
    state = prefill(pair.plan, pair.weights, state, batch)
    state = loop.run(pair.plan, pair.weights, state, how)
    return collect(batch, state, pair.drafter_config.block_size, costs)


def generate_plain(
    pair: Pair,
    prompts: Sequence[Prompt],
    *,
    max_new_tokens: int,
    stop_token_ids: Sequence[int] | None = None,
    sampling: Sequence[SamplingParams] | None = None,
    **fields: Unpack[SamplingFields],
) -> Generation:
    """The same requests and result, one token per target pass: the oracle, and what speed is compared with."""
    batch = _batch(pair, prompts, max_new_tokens, stop_token_ids, sampling, fields)
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
        prompt: Prompt,
        *,
        max_new_tokens: int,
        stop_token_ids: Sequence[int] | None = None,
        speculative: bool = True,
        sampling: SamplingParams | None = None,
        verification: Method = "token",
        verify_width: int | Literal["auto"] | None = None,
        width_costs: WidthCosts | None = None,
        **fields: Unpack[SamplingFields],
    ):
        each = None if sampling is None else [sampling]
        self._batch = _batch(pair, [prompt], max_new_tokens, stop_token_ids, each, fields)
        self._block = pair.drafter_config.block_size if speculative else 1
        self._costs = None
        if not speculative and (verification, verify_width, width_costs) != ("token", None, None):
            raise ValueError("speculative=False verifies nothing: leave verification, verify_width and costs out")
        plan: Plan = pair.plan if speculative else pair.plain_plan
        if speculative:
            how, self._costs = _verification(pair, self._batch, verification, verify_width, width_costs)
            state = _speculative_state(pair, self._batch, self._costs)
            self._step = partial(loop.run_cycle, plan, pair.weights, verification=how)
        else:
            state = new_state(self._batch, pair.target_config, None, pair.dtype)
            self._step = partial(loop.run_plain_step, plan, pair.weights)
        self._state = prefill(plan, pair.weights, state, self._batch)
        self._sent = 0

    def __iter__(self) -> Iterator[np.ndarray]:
        while True:
            state = self._state
            # One transfer per cycle.
            host = jax.device_get((state.tokens, state.emitted, state.limit, state.stopped))
            tokens, emitted, limit, stopped = (array[0] for array in host)
            fresh = tokens[self._sent : emitted]
            self._sent = int(emitted)
            if len(fresh):
                yield fresh
            if stopped or emitted >= limit:
                return
            self._state = self._step(state=state)

    def result(self) -> Generation:
        """Tokens and statistics so far; the finish reason of an unfinished request reads "length"."""
        return collect(self._batch, self._state, self._block, self._costs)


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


def collect(batch: Batch, state: LoopState, block_size: int, costs: WidthCosts | None = None) -> Generation:
    """Copies the results to the host and cuts them to their lengths."""
    count = len(batch.prompts)
    emitted, cycles = np.asarray(state.emitted)[:count], np.asarray(state.cycles)[:count]
    tokens, accepted = np.asarray(state.tokens), np.asarray(state.accepted)
    stopped, rows = np.asarray(state.stopped), np.asarray(state.target_rows)
    if failed := np.flatnonzero(np.asarray(state.failed)[:count]).tolist():
        raise FloatingPointError(
            f"the scores of prompts {failed} stopped being finite, after {emitted[failed].tolist()} tokens; check the"
            " weights and the dtype (float16 overflows where bfloat16 does not)"
        )
    return Generation(
        tokens=[tokens[slot, : emitted[slot]] for slot in range(count)],
        finish_reason=["stop" if stopped[slot] else "length" for slot in range(count)],
        stats=Stats(
            cycles=tuple(int(c) for c in cycles),
            accepted=tuple(accepted[slot, : cycles[slot]] for slot in range(count)),
            emitted=tuple(int(e) for e in emitted),
            block_size=block_size,
            target_rows=tuple(int(r) for r in rows[:count]),
            width_costs=costs,
        ),
        seeds=list(batch.seeds) or [None] * count,
        logprobs=_logprobs(batch, state, emitted) or [None] * count,
    )


def _batch(pair, prompts, max_new_tokens, stop_token_ids, sampling, fields) -> Batch:
    each = per_request(len(prompts), sampling, fields)
    return check_requests(pair.target_config, prompts, max_new_tokens, stop_token_ids, each)


def _verification(
    pair: Pair,
    batch: Batch,
    method: Method,
    width: int | Literal["auto"] | None,
    costs: WidthCosts | None,
) -> tuple[Verification, WidthCosts | None]:
    block = pair.drafter_config.block_size
    if width != "auto":
        if costs is not None:
            raise ValueError(f"width_costs belong to verify_width='auto', but verify_width is {width!r}")
        # All rows are the default: the same program.
        fixed = () if width is None or check_width(width, block) == block else (width,)
        return Verification(method, fixed), None
    if costs is None:
        costs = measure_widths(
            pair,
            batch=len(batch.prompts),
            context=batch.longest + batch.max_new_tokens,
            temperature=max((p.temperature for p in batch.sampling), default=0.0),
            verification=method,
        )
    for one in costs.widths:
        check_width(one, block)
    return Verification(method, costs.widths), costs


def _speculative_state(pair: Pair, batch: Batch, costs: WidthCosts | None) -> LoopState:
    seconds = None if costs is None else costs.seconds
    return new_state(batch, pair.target_config, pair.drafter_config, pair.dtype, width_seconds=seconds)


def _logprobs(batch: Batch, state: LoopState, emitted: np.ndarray) -> list[Logprobs | None]:
    if state.logprobs is None:
        return []
    return [
        None if params.logprobs is None else state.logprobs.collect(slot, int(emitted[slot]), params.logprobs)
        for slot, params in enumerate(batch.sampling)
    ]
