"""Inputs of `gated_delta_prefill` and what must come out, in float64 and row by row."""

import dataclasses
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from tests.gated_delta_oracle import Inputs, draw, recurrence
from tests.kernels.gated_delta_replay_cases import Change, by_slot


@dataclasses.dataclass(frozen=True)
class Case:
    """Arguments, and the outputs and the state that they give."""

    arguments: tuple
    o: np.ndarray
    state: np.ndarray


def case(
    rows: int,
    seed: int,
    *,
    slots: int = 1,
    key_heads: int = 1,
    value_heads: int = 1,
    value_dim: int = 64,
    key_dim: int = 128,
    changes: Sequence[Change] | None = None,
) -> Case:
    """A span of rows after a state; `changes` go slot by slot."""
    sizes = {"key_heads": key_heads, "value_heads": value_heads, "key_dim": key_dim, "value_dim": value_dim}
    inputs = draw(rows, seed, batch=slots, **sizes)
    return of(by_slot(inputs, changes) if changes else inputs)


def of(inputs: Inputs) -> Case:
    """The case of given inputs."""
    return Case((*inputs.slice(), jnp.asarray(inputs.state)), *recurrence(inputs))
