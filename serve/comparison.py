"""Whether speculative and plain decoding gave the same tokens, and how close the call was where they did not."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dspine_jax.generate import prefill
from dspine_jax.pair import Pair, PlainPlan
from dspine_jax.request import check_requests, new_state
from serve.completion import Request


@dataclasses.dataclass(frozen=True)
class Difference:
    """The first place where two continuations of one prompt differ."""

    position: int  # in the new tokens, from 0
    speculative: int | None  # None: this one had ended
    plain: int | None
    logit_margin: float | None  # the target's score of plain's token less that of the other; None beside an end


def first_difference(
    pair: Pair, request: Request, speculative: Sequence[int], plain: Sequence[int]
) -> Difference | None:
    """None when both gave the same tokens."""
    if list(speculative) == list(plain):
        return None
    common = min(len(speculative), len(plain))
    unequal = (i for i in range(common) if speculative[i] != plain[i])
    position = next(unequal, common)
    if position == common:
        longer = (speculative if len(speculative) > common else plain)[common]
        ended = len(speculative) == common
        return Difference(position, None if ended else longer, longer if ended else None, None)
    ours, other = speculative[position], plain[position]
    scores = next_scores(pair, [*request.prompt, *plain[:position]])
    return Difference(position, ours, other, float(scores[other] - scores[ours]))


def next_scores(pair: Pair, ids: Sequence[int]) -> np.ndarray:
    """[V] float32: the target's scores of the token after these, read as one prompt."""
    batch = check_requests(pair.target_config, [ids], 1, ())
    state = prefill(pair.plain_plan, pair.weights, new_state(batch, pair.target_config, None, pair.dtype), batch)
    return np.asarray(_scores(pair.plain_plan, pair.weights, state.last_hidden)[0], np.float32)


@functools.partial(jax.jit, static_argnames="plan")
def _scores(plan: PlainPlan, weights: Any, hidden: jax.Array) -> jax.Array:
    return plan.bind(weights)[0].logits(hidden).astype(jnp.float32)
