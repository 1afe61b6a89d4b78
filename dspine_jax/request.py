"""One batch of requests: checked, padded to buckets, turned into a fresh loop state."""

import dataclasses
import secrets
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from dspine_jax.buckets import MIN_CAPACITY, MIN_STOP_IDS, MIN_TOKENS, PAGE, round_up
from dspine_jax.cache.draft_ring import DraftCache
from dspine_jax.cache.target_cache import TargetCache
from dspine_jax.config import DrafterConfig, TargetConfig
from dspine_jax.loop.state import NO_TOKEN, LoopState
from dspine_jax.sampling.logprobs import LogprobBuffer
from dspine_jax.sampling.params import SamplingParams
from dspine_jax.sampling.state import Sampling

Prompt = Sequence[int] | np.ndarray  # token ids

MAX_STOP_IDS = 64
MAX_BATCH = 256


@dataclasses.dataclass(frozen=True)
class Batch:
    """Checked requests of one call."""

    prompts: tuple[np.ndarray, ...]
    max_new_tokens: int
    stop_token_ids: tuple[int, ...]
    sampling: tuple[SamplingParams, ...] = ()  # one per prompt, or empty: all greedy
    seeds: tuple[int | None, ...] = ()  # what each request's numbers are drawn with; None: it draws none

    @property
    def best_logprobs(self) -> int | None:
        """The most logprobs that a request wants of one token besides the emitted one's; None: none wants any."""
        return max((p.logprobs for p in self.sampling if p.logprobs is not None), default=None)

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt."""
        return max(len(prompt) for prompt in self.prompts)


def check_requests(
    config: TargetConfig,
    prompts: Sequence[Prompt],
    max_new_tokens: int,
    stop_token_ids: Sequence[int] | None,
    sampling: Sequence[SamplingParams] = (),
) -> Batch:
    """Raises ValueError with what was got and what is allowed; `stop_token_ids` None means the model's own.

    A sampled request without a seed gets a fresh one from the operating system.
    """
    stops = config.eos_token_ids if stop_token_ids is None else tuple(stop_token_ids)
    if not 1 <= len(prompts) <= MAX_BATCH:
        raise ValueError(f"got {len(prompts)} prompts, wanted 1 to {MAX_BATCH}")
    if len(stops) > MAX_STOP_IDS:
        raise ValueError(f"got {len(stops)} stop token ids, at most {MAX_STOP_IDS} are supported")
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens is {max_new_tokens}, wanted at least 1")
    arrays = tuple(_check_ids(f"prompt {i}", prompt, config.vocab_size) for i, prompt in enumerate(prompts))
    if stops:
        _check_ids("stop_token_ids", stops, config.vocab_size)
    for index, prompt in enumerate(arrays):
        total = len(prompt) + max_new_tokens
        if total > config.max_position_embeddings:
            raise ValueError(
                f"prompt {index} has {len(prompt)} tokens and max_new_tokens is {max_new_tokens}: {total} in all,"
                f" but the model's context is {config.max_position_embeddings}; shorten one of them"
            )
    for index, params in enumerate(sampling):
        params.check(f"prompt {index}", config.vocab_size, stops, max_new_tokens)
    return Batch(
        prompts=arrays,
        max_new_tokens=max_new_tokens,
        stop_token_ids=stops,
        sampling=tuple(sampling),
        seeds=tuple(_seed(params) for params in sampling),
    )


def new_state(
    batch: Batch,
    target: TargetConfig,
    drafter: DrafterConfig | None,
    dtype: jnp.dtype,
    *,
    dense: bool = False,
    width_seconds: Sequence[float] | None = None,
) -> LoopState:
    """Empty caches for a batch; without a drafter's configuration, for plain decoding only.

    Slots beyond the batch's own are empty: their limit is 0. `dense` keeps every position in the draft cache.
    `width_seconds` are the costs by which cycles choose their width.
    """
    block = drafter.block_size if drafter else 1
    slots = round_up(len(batch.prompts))
    # The last block of a request may reach past its last token: one block of slack keeps every write inside.
    capacity = round_up(batch.longest + batch.max_new_tokens + block, MIN_CAPACITY)
    tokens = round_up(batch.max_new_tokens, MIN_TOKENS)
    stops = np.full((slots, round_up(len(batch.stop_token_ids), MIN_STOP_IDS)), NO_TOKEN, np.int32)
    stops[:, : len(batch.stop_token_ids)] = batch.stop_token_ids
    limit = np.zeros(slots, np.int32)
    limit[: len(batch.prompts)] = batch.max_new_tokens
    best = batch.best_logprobs

    def zeros(*shape, dtype=jnp.int32):
        return jnp.zeros((slots, *shape), dtype)

    state = LoopState(
        target_cache=TargetCache.zeros(target, slots, capacity, block=block, page=PAGE, dtype=dtype),
        draft_cache=DraftCache.zeros(drafter, slots, capacity, dtype=dtype, dense=dense) if drafter else None,
        last_hidden=zeros(target.hidden_size, dtype=dtype),
        anchor=zeros(),
        position=zeros(),
        tokens=zeros(tokens),
        emitted=zeros(),
        limit=jnp.asarray(limit),
        stop_ids=jnp.asarray(stops),
        stopped=zeros(dtype=jnp.bool_),
        failed=zeros(dtype=jnp.bool_),
        cycles=zeros(),
        accepted=zeros(tokens),
        target_rows=zeros(),
        sampling=Sampling.of(batch.sampling, batch.seeds, batch.prompts, slots, target.vocab_size),
        logprobs=None if best is None else LogprobBuffer.zeros(slots, tokens, min(round_up(best), target.vocab_size)),
        width_seconds=None if width_seconds is None else jnp.asarray(width_seconds, jnp.float32),
    )
    # Placed like loaded weights: an array without a fixed device would compile the first step of each kind twice.
    return jax.device_put(state, jax.devices()[0])


def _seed(params: SamplingParams) -> int | None:
    if not params.sampled:
        return None
    return secrets.randbits(64) if params.seed is None else params.seed


def _check_ids(what: str, ids: Prompt, vocab_size: int) -> np.ndarray:
    array = np.asarray(ids)
    if array.ndim != 1 or array.size == 0 or not np.issubdtype(array.dtype, np.integer):
        raise ValueError(f"{what} must be a non-empty list of token ids, got shape {array.shape}, {array.dtype}")
    if array.min() < 0 or array.max() >= vocab_size:
        raise ValueError(f"{what} has ids from {array.min()} to {array.max()}, wanted 0 to {vocab_size - 1}")
    return array.astype(np.int32)
