"""Distillation of a drafter from a frozen target."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dspine_jax.config import DrafterConfig, TargetConfig
from dspine_jax.training.drafter_loss import Teacher, block_losses
from dspine_jax.training.initial import initial_weights
from dspine_jax.training.log import TrainingLog
from dspine_jax.training.on_policy import Sequences
from dspine_jax.training.optimizer import make_optimizer
from dspine_jax.training.target import read_sequence
from dspine_jax.weights import Definition, Leaves, define_drafter, leaves_of


def drafter_config(recipe: Mapping[str, Any], target: TargetConfig) -> DrafterConfig:
    """The recipe's drafter for this target; the mask is the vocabulary's last id."""
    facts = dict(recipe["drafter"])
    facts["target_layer_ids"] = tuple(facts["target_layer_ids"])
    return DrafterConfig(
        **facts,
        hidden_size=target.hidden_size,
        rope_theta=target.rope_theta,
        rms_norm_eps=target.rms_norm_eps,
        layer_types=("sliding_attention",) * facts["num_hidden_layers"],
        is_causal=True,
        vocab_size=target.vocab_size,
        max_position_embeddings=target.max_position_embeddings,
        num_target_layers=target.num_hidden_layers,
        mask_token_id=target.vocab_size - 1,
        dtype="bfloat16",
    )


def draw_anchors(rng: np.random.Generator, prompt: np.ndarray, *, length: int, block: int, count: int) -> np.ndarray:
    """[B, count] anchors in the continuation, each with a whole block after it. Row 0 may be its first token."""
    last = length - block
    return np.stack([rng.choice(np.arange(first, last + 1), count, replace=False) for first in prompt])


def train_drafter(
    config: DrafterConfig,
    recipe: Mapping[str, Any],
    target_config: TargetConfig,
    target: Definition,
    target_leaves: Leaves,
    sequences: Sequences,
    log_path: Path,
    save: Callable[[dict[str, jax.Array]], None],
) -> None:
    """Trains in float32; `save` receives the flat weights every 500 steps and at the end."""
    training, seed = recipe["drafter_training"], recipe["seed"]
    definition, abstract = define_drafter(config, jnp.dtype("float32"), "xla")
    leaves = leaves_of(abstract, initial_weights(abstract, seed=seed, ones=True, layers=config.num_hidden_layers))
    optimizer = make_optimizer(training)
    optimizer_state = optimizer.init(leaves)

    @partial(jax.jit, donate_argnums=(0, 1))
    def step(leaves, optimizer_state, target_leaves, ids, anchors):
        model, hidden, features = read_sequence(target, target_leaves, target_config, ids, config.target_layer_ids)
        teacher = Teacher(
            embedding=model.embed_tokens.weight[...],
            head=model.head,
            features=features,
            logits=model.logits(hidden),
        )

        def loss(leaves):
            return block_losses(
                definition.bind(leaves), teacher, ids, anchors, position_decay=training["position_decay"]
            )

        (_, metrics), gradient = jax.value_and_grad(loss, has_aux=True)(leaves)
        updates, optimizer_state = optimizer.update(gradient, optimizer_state, leaves)
        return optax.apply_updates(leaves, updates), optimizer_state, metrics

    rng = np.random.default_rng(seed)
    log, recent = TrainingLog(log_path), []
    for index in range(training["steps"]):
        chosen = rng.integers(0, len(sequences.ids), training["batch"])
        ids = sequences.ids[chosen]
        anchors = draw_anchors(
            rng,
            sequences.prompt[chosen],
            length=ids.shape[1],
            block=config.block_size,
            count=training["anchors"],
        )
        leaves, optimizer_state, metrics = step(leaves, optimizer_state, target_leaves, ids, anchors)
        recent.append(metrics)
        if (index + 1) % 50 == 0 or index + 1 == training["steps"]:
            log.report(index + 1, **{name: np.mean([float(m[name]) for m in recent]) for name in metrics})
            recent = []
        if (index + 1) % 500 == 0 or index + 1 == training["steps"]:
            save(dict(zip(definition.names, leaves, strict=True)))
