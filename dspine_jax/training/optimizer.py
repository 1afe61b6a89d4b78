"""AdamW with warm-up, cosine decay to zero and clipped gradients."""

from collections.abc import Mapping
from typing import Any

import jax
import optax


def make_optimizer(training: Mapping[str, Any]) -> optax.GradientTransformation:
    """Weight decay applies to matrices only."""
    schedule = optax.warmup_cosine_decay_schedule(
        0.0, training["learning_rate"], training["warmup"], max(training["steps"], training["warmup"] + 1)
    )
    return optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.adamw(
            schedule,
            b2=0.95,
            weight_decay=training["weight_decay"],
            mask=lambda leaves: jax.tree.map(lambda leaf: leaf.ndim > 1, leaves),
        ),
    )
