"""A target and its drafter, ready to run: static plan and weights."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from dspine_jax.config import DrafterConfig, TargetConfig, check_pair
from dspine_jax.drafter.propose import Borrowed, DraftOptions, Proposer
from dspine_jax.drafter.tail import TailTables, build_tables
from dspine_jax.target import Target
from dspine_jax.weights import Definition, Leaves, define_drafter, define_target, leaves_of
from pallas_kernels.implementation import Implementation
from pallas_kernels.retrieval import CoarseHead, quantize_head


@dataclasses.dataclass(frozen=True)
class PairPlan:
    """The static side of a pair; equal plans share compiled programs."""

    target: Definition
    drafter: Definition
    taps: tuple[int, ...]
    options: DraftOptions

    def bind(self, weights: "PairWeights") -> tuple[Target, Proposer]:
        """The models with these weights; call it inside a traced function."""
        target = self.target.bind(weights.target)
        borrowed = Borrowed(
            embedding=target.embed_tokens.weight[...],
            head=target.head,
            coarse_head=weights.coarse_head,
            tables=weights.tables,
        )
        drafter = self.drafter.bind(weights.drafter)
        return target, Proposer(drafter=drafter, borrowed=borrowed, options=self.options)


@dataclasses.dataclass(frozen=True)
class PlainPlan:
    """The target alone, on the same weights."""

    target: Definition
    taps: tuple[int, ...] = ()

    def bind(self, weights: "PairWeights") -> tuple[Target, None]:
        """The target with these weights, and no drafter."""
        return self.target.bind(weights.target), None


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["target", "drafter", "coarse_head", "tables"],
    meta_fields=[],
)
@dataclasses.dataclass(frozen=True)
class PairWeights:
    """Leaves of both models and the tensors derived from them once."""

    target: Leaves
    drafter: Leaves
    coarse_head: CoarseHead | None
    tables: TailTables | None


@dataclasses.dataclass(frozen=True)
class Pair:
    """What `load` returns and `generate` takes."""

    target_config: TargetConfig
    drafter_config: DrafterConfig
    plan: PairPlan
    weights: PairWeights
    dtype: jnp.dtype

    @property
    def plain_plan(self) -> PlainPlan:
        """The plan of plain decoding on this pair's target."""
        return PlainPlan(target=self.plan.target)

    def with_options(self, options: DraftOptions) -> "Pair":
        """The same pair drafting in another way; builds the tensors that the way needs and lacks."""
        weights = self.weights
        if options.retrieval == "fp8" and weights.coarse_head is None:
            weights = dataclasses.replace(weights, coarse_head=_coarse_head(self.plan, weights))
        if options.tail == "table" and weights.tables is None:
            weights = dataclasses.replace(weights, tables=_tables(self.plan, weights, self.dtype))
        return dataclasses.replace(self, plan=dataclasses.replace(self.plan, options=options), weights=weights)

    def with_implementation(self, implementation: Implementation | None) -> "Pair":
        """The same pair with every operation run as named: None (the device decides), "xla" or "mosaic_gpu".

        An operation that cannot run as named raises ValueError when it is compiled.
        """
        plan = dataclasses.replace(
            self.plan,
            target=define_target(self.target_config, self.dtype, implementation)[0],
            drafter=define_drafter(self.drafter_config, self.dtype, implementation)[0],
        )
        return dataclasses.replace(self, plan=plan)


def build_pair(
    target_config: TargetConfig,
    drafter_config: DrafterConfig,
    target: Mapping[str, Any],
    drafter: Mapping[str, Any],
    *,
    dtype: jnp.dtype | None = None,
    options: DraftOptions | None = None,
) -> Pair:
    """A pair from flat weights {checkpoint name: array}; `dtype` defaults to the target config's.

    Raises ConfigError when the two do not belong together, ValueError when names or shapes do not fit.
    """
    check_pair(target_config, drafter_config)
    dtype = jnp.dtype(target_config.dtype if dtype is None else dtype)
    target_definition, target_shapes = define_target(target_config, dtype)
    drafter_definition, drafter_shapes = define_drafter(drafter_config, dtype)
    options = DraftOptions() if options is None else options
    plan = PairPlan(
        target=target_definition,
        drafter=drafter_definition,
        taps=drafter_config.target_layer_ids,
        options=options,
    )
    weights = PairWeights(
        target=leaves_of(target_shapes, target),
        drafter=leaves_of(drafter_shapes, drafter),
        coarse_head=None,
        tables=None,
    )
    pair = Pair(target_config=target_config, drafter_config=drafter_config, plan=plan, weights=weights, dtype=dtype)
    return pair.with_options(options)


@functools.partial(jax.jit, static_argnames="plan")
def _coarse_head(plan: PairPlan, weights: PairWeights) -> CoarseHead:
    return quantize_head(plan.target.bind(weights.target).head)


@functools.partial(jax.jit, static_argnames=("plan", "dtype"))
def _tables(plan: PairPlan, weights: PairWeights, dtype: jnp.dtype) -> TailTables:
    target, proposer = plan.bind(weights)
    return build_tables(proposer.drafter, target.head, dtype)
