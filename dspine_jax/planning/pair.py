"""A pair without weights: shapes and dtypes only, made by the code that makes the real one."""

import dataclasses
import functools
from typing import Self

import jax
import jax.numpy as jnp

from dspine_jax.buckets import PAGE
from dspine_jax.config import DrafterConfig, TargetConfig
from dspine_jax.drafter.propose import DraftOptions
from dspine_jax.loop.state import LoopState
from dspine_jax.pair import PairPlan, PairWeights, build_pair
from dspine_jax.request import check_requests, new_state
from dspine_jax.weights import abstract_drafter, abstract_target


@dataclasses.dataclass(frozen=True, eq=False)
class AbstractPair:
    """What `Pair` is, with `jax.ShapeDtypeStruct` for every array."""

    target_config: TargetConfig
    drafter_config: DrafterConfig
    plan: PairPlan
    weights: PairWeights
    dtype: jnp.dtype

    @classmethod
    def build(
        cls,
        target: TargetConfig,
        drafter: DrafterConfig,
        dtype: jax.typing.DTypeLike | None = None,
        options: DraftOptions | None = None,
    ) -> Self:
        """Raises ConfigError when the two do not belong together. `dtype` defaults to the target config's."""
        dtype = jnp.dtype(target.dtype if dtype is None else dtype)
        plans = []

        def weights(target_leaves, drafter_leaves):
            pair = build_pair(target, drafter, target_leaves, drafter_leaves, dtype=dtype, options=options)
            plans.append(pair.plan)
            return pair.weights

        shapes = jax.eval_shape(weights, abstract_target(target, dtype), abstract_drafter(drafter, dtype))
        return cls(target_config=target, drafter_config=drafter, plan=plans[0], weights=shapes, dtype=dtype)

    @property
    def block(self) -> int:
        """Rows of a block: the anchor and its proposals."""
        return self.drafter_config.block_size

    def state(self, slots: int, context: int) -> LoopState:
        """The loop state of `slots` greedy requests of `context` tokens each, prompt and answer together.

        Slots and positions are rounded up as `dspine_jax.request.new_state` does. Raises ValueError for sizes that
        cannot be served.
        """
        return _state(self, slots, context)


def positions(state: LoopState) -> int:
    """Positions that a slot has pages for."""
    return state.target_cache.page_table.shape[1] * PAGE


def slots(state: LoopState) -> int:
    """Slots, the empty ones included."""
    return state.anchor.shape[0]


@functools.lru_cache(maxsize=1024)
def _state(pair: AbstractPair, slots: int, context: int) -> LoopState:
    if context < 2:
        raise ValueError(f"the context is {context}, wanted at least 2: one token of prompt and one of answer")
    # A prompt of one token: the longest answer needs the largest buffers.
    batch = check_requests(pair.target_config, [[0]] * slots, context - 1, ())
    return jax.eval_shape(lambda: new_state(batch, pair.target_config, pair.drafter_config, pair.dtype))
