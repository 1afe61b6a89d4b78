"""Training of a small target by next-token prediction."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from dspine_jax.cache.target_cache import TargetCache
from dspine_jax.config import TargetConfig
from dspine_jax.config.target import TEXT_MODEL_TYPE
from dspine_jax.target.rows import Rows
from dspine_jax.training.initial import initial_weights
from dspine_jax.training.log import TrainingLog
from dspine_jax.training.optimizer import make_optimizer
from dspine_jax.weights import Definition, Leaves, define_target, leaves_of


def target_config(recipe: Mapping[str, Any]) -> TargetConfig:
    """The recipe's target: layer types by interval, the tokenizer's last two ids as end of text and mask."""
    facts = dict(recipe["target"])
    interval = facts.pop("full_attention_interval")
    vocab = recipe["corpus"]["vocab_size"]
    return TargetConfig(
        **facts,
        model_type=TEXT_MODEL_TYPE,
        layer_types=tuple(
            "full_attention" if (i + 1) % interval == 0 else "linear_attention"
            for i in range(facts["num_hidden_layers"])
        ),
        attn_output_gate=True,
        vocab_size=vocab,
        tie_word_embeddings=False,
        eos_token_ids=(vocab - 2,),
        dtype="bfloat16",
    )


def read_sequence(
    definition: Definition,
    leaves: Leaves,
    config: TargetConfig,
    ids: Int[Array, "B T"],
    taps: tuple[int, ...] = (),
) -> tuple[Any, Float[Array, "B T H"], Float[Array, "B T F"]]:
    """The bound target, and its hidden states and features over whole sequences from an empty cache."""
    batch, rows = ids.shape
    target = definition.bind(leaves)
    cache = TargetCache.zeros(config, batch, rows, block=1, dtype=leaves[0].dtype)
    span = Rows.of(jnp.zeros(batch, jnp.int32), jnp.full(batch, rows, jnp.int32), rows, commit=True)
    hidden, features, _ = target(ids, span, cache, taps)
    return target, hidden, features


def sample_windows(tokens: np.ndarray, *, seed: int, batch: int, length: int) -> Iterator[np.ndarray]:
    """Endless random windows [batch, length] of one long token stream."""
    rng = np.random.default_rng(seed)
    while True:
        starts = rng.integers(0, len(tokens) - length, batch)
        yield np.stack([tokens[start : start + length] for start in starts])


def train_target(
    config: TargetConfig,
    recipe: Mapping[str, Any],
    tokens: np.ndarray,
    held_out: np.ndarray,
    log_path: Path,
    save: Callable[[dict[str, jax.Array]], None],
) -> None:
    """Trains in float32; `save` receives the flat weights every 500 steps and at the end."""
    training, seed = recipe["target_training"], recipe["seed"]
    definition, abstract = define_target(config, jnp.float32, "xla")
    leaves = leaves_of(abstract, initial_weights(abstract, seed=seed, ones=False, layers=config.num_hidden_layers))
    optimizer = make_optimizer(training)
    optimizer_state = optimizer.init(leaves)

    def loss(leaves, ids):
        target, hidden, _ = read_sequence(definition, leaves, config, ids)
        logits = target.logits(hidden[:, :-1])
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, ids[:, 1:]))

    @partial(jax.jit, donate_argnums=(0, 1))
    def step(leaves, optimizer_state, ids):
        value, gradient = jax.value_and_grad(loss)(leaves, ids)
        updates, optimizer_state = optimizer.update(gradient, optimizer_state, leaves)
        return optax.apply_updates(leaves, updates), optimizer_state, value

    evaluate = jax.jit(loss)
    size = {"batch": training["batch"], "length": training["sequence"]}
    windows = sample_windows(tokens, seed=seed, **size)
    check = [window for window, _ in zip(sample_windows(held_out, seed=seed, **size), range(4), strict=False)]
    log, recent = TrainingLog(log_path), []
    for index in range(training["steps"]):
        leaves, optimizer_state, value = step(leaves, optimizer_state, next(windows))
        recent.append(value)
        if (index + 1) % 100 == 0 or index + 1 == training["steps"]:
            held = np.mean([evaluate(leaves, window) for window in check])
            log.report(index + 1, loss=np.mean([float(v) for v in recent]), held_out=float(held))
            recent = []
        if (index + 1) % 500 == 0 or index + 1 == training["steps"]:
            save(dict(zip(definition.names, leaves, strict=True)))
