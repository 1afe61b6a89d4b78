"""Training text for a drafter: prompts from files, continued greedily by the target itself.

A drafter is judged on what its target would say, so that is what it learns from.
"""

import dataclasses
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from dspine_jax import loop
from dspine_jax.config import TargetConfig
from dspine_jax.generate import prefill
from dspine_jax.pair import PairWeights, PlainPlan
from dspine_jax.request import Batch, new_state
from dspine_jax.weights import Definition, Leaves


@dataclasses.dataclass(frozen=True)
class Sequences:
    """Rows of text, of which the target wrote everything after the prompt."""

    ids: np.ndarray  # [rows, T] int32
    prompt: np.ndarray  # [rows] prompt lengths


def sample_prompts(
    files: Sequence[np.ndarray], *, seed: int, count: int, shortest: int, longest: int
) -> list[np.ndarray]:
    """Prompts that start at a random place of a file drawn by length, with lengths uniform in the range."""
    rng = np.random.default_rng(seed)
    files = [file for file in files if len(file) > longest]
    share = np.array([len(file) for file in files], float)
    chosen = rng.choice(len(files), count, p=share / share.sum())
    prompts = []
    for index in chosen:
        length = int(rng.integers(shortest, longest + 1))
        start = int(rng.integers(0, len(files[index]) - length))
        prompts.append(files[index][start : start + length])
    return prompts


def continue_prompts(
    definition: Definition,
    leaves: Leaves,
    config: TargetConfig,
    prompts: Sequence[np.ndarray],
    *,
    length: int,
    batch: int = 128,
) -> Sequences:
    """Each prompt continued greedily to `length` tokens in all; end-of-text tokens do not stop it."""
    plan = PlainPlan(target=definition)
    weights = PairWeights(target=leaves, drafter=(), coarse_head=None, tables=None)
    rows = []
    for start in range(0, len(prompts), batch):
        part = tuple(prompts[start : start + batch])
        requests = Batch(prompts=part, max_new_tokens=length, stop_token_ids=())
        state = new_state(requests, config, None, leaves[0].dtype)
        limit = np.zeros(state.limit.shape, np.int32)
        limit[: len(part)] = [length - len(prompt) for prompt in part]
        state = dataclasses.replace(state, limit=jnp.asarray(limit))
        state = loop.run_plain(plan, weights, prefill(plan, weights, state, requests))
        emitted = np.asarray(state.tokens)
        rows += [np.concatenate([p, emitted[i, : limit[i]]]) for i, p in enumerate(part)]
    return Sequences(ids=np.stack(rows), prompt=np.array([len(p) for p in prompts], np.int32))
