"""The requests' sampling on the device: one entry per slot."""

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt32

from dspine_jax.cache.slots import clear_slots
from dspine_jax.sampling.filters import Filters, probabilities
from dspine_jax.sampling.params import SamplingParams
from dspine_jax.sampling.processors import Processors


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["filters", "processors", "seed", "alone"], meta_fields=[]
)
@dataclasses.dataclass(frozen=True)
class Sampling:
    """Absent from a batch of plain greedy requests, whose programs stay as light as without sampling."""

    filters: Filters
    processors: Processors | None  # None: no request of the batch changes logits
    seed: UInt32[Array, "B 2"]  # high and low word
    alone: Bool[Array, " B"]  # the request named its seed: nothing about its neighbours may change its tokens

    def law(
        self,
        logits: Float[Array, "B R V"],
        proposals: Int[Array, "B R-1"],
        emitted: Int[Array, " B"],
        stop_ids: Int[Array, "B K"],
    ) -> Float[Array, "B R V"]:
        """What the token after each row is drawn from; row i has read the anchor and proposals 0 .. i-1."""
        if self.processors is not None:
            logits = self.processors.process(logits, proposals, emitted, stop_ids)
        return probabilities(logits, self.filters)

    def proposal_law(
        self,
        scores: Float[Array, "B T-1 k k"],
        candidates: Int[Array, "B T-1 k"],
        emitted: Int[Array, " B"],
        stop_ids: Int[Array, "B K"],
    ) -> Float[Array, "B T-1 k k"]:
        """What each proposal is drawn from, for every predecessor."""
        if self.processors is not None:
            scores = self.processors.process_candidates(scores, candidates, emitted, stop_ids)
        batch, rows, keep = candidates.shape
        return probabilities(scores.reshape(batch, rows * keep, keep), self.filters).reshape(scores.shape)

    def count(self, tokens: Int[Array, "B T"], emitted: Bool[Array, "B T"]) -> "Sampling":
        """The state after these tokens, of which the marked ones were emitted."""
        if self.processors is None:
            return self
        return dataclasses.replace(self, processors=self.processors.count(tokens, emitted))

    def drain(self, emitted: Int[Array, " B"]) -> "Sampling":
        """With tokens counted anew from 0, after these many."""
        if self.processors is None:
            return self
        return dataclasses.replace(self, processors=self.processors.drain(emitted))

    def reset_slots(self, fresh: Bool[Array, " B"]) -> "Sampling":
        """Greedy and unprocessed in the marked slots."""

        def clear(x, value=0):
            return clear_slots(x, fresh, value)

        filters = self.filters
        return Sampling(
            filters=Filters(
                temperature=clear(filters.temperature),
                top_k=clear(filters.top_k),
                top_p=clear(filters.top_p, 1),
                min_p=clear(filters.min_p),
            ),
            processors=None if self.processors is None else self.processors.reset_slots(fresh),
            seed=clear(self.seed),
            alone=clear(self.alone),
        )

    @staticmethod
    def of(
        params: Sequence[SamplingParams],
        seeds: Sequence[int | None],
        prompts: Sequence[np.ndarray],
        slots: int,
        vocab_size: int,
    ) -> "Sampling | None":
        """The state of these requests in the first of `slots` slots; None when all are greedy and unprocessed."""
        if not any(p.sampled or p.processed for p in params):
            return None
        return Sampling.whole(params, seeds, prompts, slots, vocab_size, processed=any(p.processed for p in params))

    @staticmethod
    def whole(
        params: Sequence[SamplingParams],
        seeds: Sequence[int | None],
        prompts: Sequence[np.ndarray],
        slots: int,
        vocab_size: int,
        *,
        processed: bool = True,
    ) -> "Sampling":
        """The same, whatever the requests need: for batches whose requests come and go."""
        # Slots without a request are greedy.
        padded = [*params, *[SamplingParams()] * (slots - len(params))]

        def column(values, dtype):
            return jnp.asarray(np.array(list(values), dtype))

        words = [divmod(seed or 0, 1 << 32) for seed in seeds] + [(0, 0)] * (slots - len(params))
        return Sampling(
            filters=Filters(
                temperature=column((p.temperature for p in padded), np.float32),
                top_k=column((min(p.top_k or 0, vocab_size) for p in padded), np.int32),
                top_p=column((1.0 if p.top_p is None else p.top_p for p in padded), np.float32),
                min_p=column((p.min_p or 0.0 for p in padded), np.float32),
            ),
            processors=_processors(padded, prompts, vocab_size) if processed else None,
            seed=column(words, np.uint32),
            alone=column((p.sampled and p.seed is not None for p in padded), np.bool_),
        )


def _processors(params: Sequence[SamplingParams], prompts: Sequence[np.ndarray], vocab_size: int) -> Processors:
    slots = len(params)
    in_prompt = np.zeros((slots, vocab_size), np.bool_)
    bias = np.zeros((slots, vocab_size), np.float32)
    for slot, prompt in enumerate(prompts):
        in_prompt[slot, prompt] = True
    for slot, p in enumerate(params):
        for token, value in (p.logit_bias or {}).items():
            bias[slot, token] = value
        if p.allowed_token_ids is not None:
            banned = np.ones(vocab_size, np.bool_)
            banned[list(p.allowed_token_ids)] = False
            bias[slot, banned] = -np.inf
        bias[slot, list(p.bad_token_ids)] = -np.inf

    def column(name, dtype):
        return jnp.asarray(np.array([getattr(p, name) for p in params], dtype))

    return Processors(
        counts=jnp.zeros((slots, vocab_size), jnp.int32),
        in_prompt=jnp.asarray(in_prompt),
        bias=jnp.asarray(bias),
        repetition=column("repetition_penalty", np.float32),
        frequency=column("frequency_penalty", np.float32),
        presence=column("presence_penalty", np.float32),
        min_tokens=column("min_tokens", np.int32),
    )
