"""A drafter whose proposals follow a script, so that a test asks for any number of accepted proposals.

A script is data: one compiled program serves every prompt, weight, drafter and order of accepts.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from dspine_jax import loop
from dspine_jax.buckets import MIN_CAPACITY
from dspine_jax.drafter.propose import Proposer
from dspine_jax.generate import Generation, collect, generate_plain, prefill
from dspine_jax.loop.state import NO_TOKEN, LoopState
from dspine_jax.pair import Pair, PairPlan, PairWeights, build_pair
from dspine_jax.request import Batch, check_requests, new_state
from dspine_jax.target import Target
from tests.tiny import random_drafter, random_target, tiny_drafter_config, tiny_target_config

SLOTS = 8
TOKENS = 100  # tokens that plain decoding is asked for, in the 128 bucket
LENGTH = MIN_CAPACITY + 16  # positions that a script covers

# A gated delta net before and after the attention layer. The context limit and one block of 16 fill a capacity bucket.
TARGET = tiny_target_config(
    num_hidden_layers=3,
    layer_types=("linear_attention", "full_attention", "linear_attention"),
    max_position_embeddings=MIN_CAPACITY - 16,
)


@functools.cache
def pair_of(seed: int = 0, block: int = 16) -> Pair:
    """Random weights; all pairs of one block size share their programs, those of one seed their target."""
    drafter = tiny_drafter_config(
        TARGET,
        num_hidden_layers=2,
        layer_types=("sliding_attention", "full_attention"),
        sliding_window=20,
        block_size=block,
    )
    return build_pair(TARGET, drafter, random_target(TARGET, seed), random_drafter(drafter, seed))


@dataclasses.dataclass(frozen=True)
class Request:
    """A prompt, how much of its plain continuation is wanted, and the continuation [TOKENS]."""

    prompt: list[int]
    plain: np.ndarray
    limit: int
    stop: tuple[int, ...] = ()

    @property
    def expected(self) -> tuple[list[int], str]:
        """Tokens and finish reason of plain decoding, from its unlimited continuation."""
        tokens = self.plain[: self.limit].tolist()
        for index, token in enumerate(tokens):
            if token in self.stop:
                return tokens[: index + 1], "stop"
        return tokens, "length"


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["pair", "follow", "right", "scripted"], meta_fields=[]
)
@dataclasses.dataclass(frozen=True)
class Script:
    """The weights of a scripted plan."""

    pair: PairWeights
    follow: jax.Array  # [B, LENGTH] the token at each position
    right: jax.Array  # [B, LENGTH] proposals that are right when the anchor is at this position
    scripted: jax.Array  # [B] False: the real drafter proposes


@dataclasses.dataclass(frozen=True)
class ScriptedPlan:
    """The plan of a pair with the script in front of its drafter; the drafter still keeps its cache."""

    pair: PairPlan

    @property
    def taps(self) -> tuple[int, ...]:
        return self.pair.taps

    def bind(self, weights: Script) -> tuple[Target, "ScriptedDrafting"]:
        target, proposer = self.pair.bind(weights.pair)
        return target, ScriptedDrafting(proposer, weights)


@dataclasses.dataclass(frozen=True)
class ScriptedDrafting:
    proposer: Proposer
    script: Script

    def propose(self, anchor, position, cache):
        real = self.proposer.propose(anchor, position, cache)
        offset = jnp.arange(real.shape[1], dtype=jnp.int32)[None]
        follow = jnp.take_along_axis(self.script.follow, position[:, None] + 1 + offset, axis=1)
        right = jnp.take_along_axis(self.script.right, position[:, None], axis=1)
        scripted = jnp.where(offset < right, follow, (follow + 1) % TARGET.vocab_size)
        return jnp.where(self.script.scripted[:, None], scripted, real)

    def tables(self, anchor, position, cache):
        raise ValueError("a script has proposals, but no law of them")

    def write_context(self, features, positions, valid, cache):
        return self.proposer.write_context(features, positions, valid, cache)


Right = Callable[[int], int] | Sequence[int] | int | None


def script_of(pair: Pair, requests: Sequence[Request], rights: Sequence[Right]) -> Script:
    """`rights` per request: a number; numbers for the cycles in turn, then 0; a function of the anchor's place in
    the continuation; or None for the real drafter."""
    follow, right = np.zeros((2, SLOTS, LENGTH), np.int32)
    for slot, (request, rule) in enumerate(zip(requests, rights, strict=True)):
        start = len(request.prompt)
        follow[slot, start : start + len(request.plain)] = request.plain[: LENGTH - start]
        places = range(LENGTH - start)
        if isinstance(rule, Sequence):
            at = 0
            for count in rule:
                right[slot, start + at] = count
                at += count + 1
        elif rule is not None:
            right[slot, start:] = [rule(place) if callable(rule) else rule for place in places]
    scripted = [rule is not None for rule in rights] + [True] * (SLOTS - len(rights))
    return Script(pair.weights, jnp.asarray(follow), jnp.asarray(right), jnp.asarray(scripted))


def start(pair: Pair, weights: Script, requests: Sequence[Request]) -> LoopState:
    """All prompts read and their first tokens emitted, in SLOTS slots of the smallest capacity."""
    state = assign(empty_state(pair), dict(enumerate(requests)))
    return prefill(ScriptedPlan(pair.plan), weights, state, batch_of(requests))


def empty_state(pair: Pair) -> LoopState:
    """No requests: every limit is 0."""
    batch = check_requests(TARGET, [[0]] * SLOTS, TOKENS, [])
    state = new_state(batch, TARGET, pair.drafter_config, pair.dtype)
    return dataclasses.replace(state, limit=jnp.zeros_like(state.limit))


def assign(state: LoopState, requests: dict[int, Request]) -> LoopState:
    """The state with these slots' limits and stop ids."""
    limit, stop = np.array(state.limit), np.array(state.stop_ids)
    for slot, request in requests.items():
        limit[slot] = request.limit
        stop[slot] = NO_TOKEN
        stop[slot, : len(request.stop)] = request.stop
    return dataclasses.replace(state, limit=jnp.asarray(limit), stop_ids=jnp.asarray(stop))


def batch_of(requests: Sequence[Request]) -> Batch:
    return Batch(
        prompts=tuple(np.array(request.prompt, np.int32) for request in requests),
        max_new_tokens=TOKENS,
        stop_token_ids=(),
    )


def generate_scripted(pair: Pair, requests: Sequence[Request], rights: Sequence[Right]) -> Generation:
    """Speculative decoding that was found equal to plain decoding: tokens and finish reasons, per request.

    Acceptance statistics mean nothing without that check, so there is no other way to them.
    """
    weights = script_of(pair, requests, rights)
    state = loop.run(ScriptedPlan(pair.plan), weights, start(pair, weights, requests))
    return checked(pair, state, requests)


def checked(pair: Pair, state: LoopState, requests: Sequence[Request]) -> Generation:
    """The results, after comparing them with plain decoding."""
    result = collect(batch_of(requests), state, pair.drafter_config.block_size)
    for index, request in enumerate(requests):
        tokens, reason = request.expected
        got = result.tokens[index].tolist(), result.finish_reason[index]
        assert got == (tokens, reason), f"request {index}, {len(request.prompt)} prompt tokens: {got}"
    return result


def plain_requests(pair: Pair, prompts: Sequence[list[int]], limit: int = TOKENS) -> list[Request]:
    """Requests with their continuations by plain decoding, eight at a time so that one program serves all."""
    requests = []
    for first in range(0, len(prompts), SLOTS):
        group = list(prompts[first : first + SLOTS])
        padded = group + [group[0]] * (SLOTS - len(group))
        tokens = generate_plain(pair, padded, max_new_tokens=TOKENS, stop_token_ids=[]).tokens
        requests += [
            Request(prompt=prompt, plain=plain, limit=limit) for prompt, plain in zip(group, tokens, strict=False)
        ]
    return requests


def random_prompts(seed: int, lengths: Sequence[int]) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, TARGET.vocab_size, length).tolist() for length in lengths]


def copy(tree):
    """The same values in buffers that may be donated."""
    return jax.tree.map(lambda x: x.copy(), tree)
