"""Weights between three forms: an nnx module, a flat {checkpoint name: array}, and a tuple of leaves for jit.

The flat form is the exchange format: readers produce it, Orbax stores it, `bind` fills a module from it. Modules
never cross a jit boundary; their leaves do, since flattening a module on each call costs milliseconds of host time.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from dspine_jax.config import DrafterConfig, TargetConfig
from dspine_jax.drafter.model import Drafter
from dspine_jax.target import Target
from pallas_kernels.implementation import Implementation

Leaves = tuple[jax.Array, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Definition:
    """What is static about a module: its graph and its parameters' names, in leaf order.

    Compared by identity, which is cheap on every dispatch; `define_target` and `define_drafter` return the same
    object for the same configuration, so equal pairs share compiled programs.
    """

    graph: Any
    names: tuple[str, ...]

    def bind(self, leaves: Leaves) -> Any:
        """The module with these leaves; call it inside the traced function."""
        paths = [tuple(int(p) if p.isdigit() else p for p in name.split(".")) for name in self.names]
        state = nnx.from_flat_state([(path, nnx.Param(leaf)) for path, leaf in zip(paths, leaves, strict=True)])
        return nnx.merge(self.graph, state)


def define_target(
    config: TargetConfig, dtype: jnp.dtype, implementation: Implementation | None = None
) -> tuple[Definition, dict[str, jax.ShapeDtypeStruct]]:
    """The target's definition and the name, shape and dtype of each parameter; nothing is allocated.

    `implementation` is what its operations run as (`pallas_kernels.implementation.resolve`).
    """
    return _define(Target, config, jnp.dtype(dtype), implementation)


def define_drafter(
    config: DrafterConfig, dtype: jnp.dtype, implementation: Implementation | None = None
) -> tuple[Definition, dict[str, jax.ShapeDtypeStruct]]:
    """The same for the drafter."""
    return _define(Drafter, config, jnp.dtype(dtype), implementation)


def abstract_target(config: TargetConfig, dtype: jnp.dtype) -> dict[str, jax.ShapeDtypeStruct]:
    """Name, shape and dtype of each target parameter."""
    return define_target(config, dtype)[1]


def abstract_drafter(config: DrafterConfig, dtype: jnp.dtype) -> dict[str, jax.ShapeDtypeStruct]:
    """Name, shape and dtype of each drafter parameter."""
    return define_drafter(config, dtype)[1]


def leaves_of(abstract: Mapping[str, jax.ShapeDtypeStruct], flat: Mapping[str, Any]) -> Leaves:
    """The flat weights as leaves in the definition's order; every name exactly once, every shape as declared."""
    faults = [f"missing {name} {spec.shape}" for name, spec in abstract.items() if name not in flat]
    faults += [f"unknown {name} {tuple(flat[name].shape)}" for name in flat if name not in abstract]
    faults += [
        f"{name} has shape {tuple(flat[name].shape)}, wanted {spec.shape}"
        for name, spec in abstract.items()
        if name in flat and tuple(flat[name].shape) != spec.shape
    ]
    if faults:
        raise ValueError("the weights do not fit the configuration:\n  " + "\n  ".join(faults))
    return tuple(jnp.asarray(flat[name], dtype=spec.dtype) for name, spec in abstract.items())


@functools.cache
def _define(model, config, dtype, implementation) -> tuple[Definition, dict[str, jax.ShapeDtypeStruct]]:
    graph, state = nnx.split(nnx.eval_shape(lambda: model(config, dtype, implementation)))
    flat = [(".".join(map(str, path)), leaf.get_value()) for path, leaf in nnx.to_flat_state(state)]
    abstract = {name: jax.ShapeDtypeStruct(value.shape, value.dtype) for name, value in flat}
    return Definition(graph=graph, names=tuple(abstract)), abstract
