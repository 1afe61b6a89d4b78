"""A pair whose drafter copies what its target mostly does, by construction: useful acceptance without training.

Every layer of the target adds little, so its next token mostly follows from the last one: an argmax over
head . RMSNorm(embedding[last]). The drafter's stored codes are those embeddings and its last write passes the
predecessor's code through, so the tail's h_t(u) is RMSNorm(embedding[u] + a little of the row), and all tokens are
candidates.
"""

import functools

import jax.numpy as jnp

from dspine_jax.config import DrafterConfig, TargetConfig
from dspine_jax.pair import Pair, build_pair
from tests.tiny import random_drafter, random_target, tiny_drafter_config, tiny_target_config

BLOCK = 16

TARGET = tiny_target_config(
    num_hidden_layers=2,
    layer_types=("linear_attention", "full_attention"),
    max_position_embeddings=512 - BLOCK,
)
DRAFTER = tiny_drafter_config(
    TARGET,
    num_hidden_layers=1,
    layer_types=("sliding_attention",),
    sliding_window=20,
    block_size=BLOCK,
    target_layer_ids=(0,),
    transfer_dim=TARGET.hidden_size,
    message_dim=TARGET.hidden_size,
    head_topk=TARGET.vocab_size,
)


@functools.cache
def copying_pair(
    mixing: float = 0.3,
    code: float = 10.0,
    seed: int = 0,
    *,
    target_config: TargetConfig = TARGET,
    drafter_config: DrafterConfig = DRAFTER,
) -> Pair:
    """`mixing` scales what the target's layers add, `code` the stored codes.

    No mixing and large codes make a perfect copy; the defaults agree for a while, and depend on the whole context.
    The drafter has one layer; its code and message are as wide as the target.
    """
    target, drafter = random_target(target_config, seed), random_drafter(drafter_config, seed)
    for name in target:
        if name.endswith(("out_proj.weight", "o_proj.weight", "down_proj.weight")):
            target[name] = target[name] * mixing
    eye = jnp.eye(target_config.hidden_size, dtype=target_config.dtype)
    for name in ("receiver_gate", "predecessor_gate"):
        drafter[f"injection.{name}.weight"] = 0 * eye
    drafter["injection.message.weight"] = eye
    drafter["injection.gate_bias"] = jnp.full(len(eye), 30.0, eye.dtype)  # gates are open
    drafter["injection.writes.0.weight"] = eye
    drafter["injection.codebook.weight"] = code * target["embed_tokens.weight"]
    drafter["norm.weight"] = 1.0 + target["norm.weight"]
    return build_pair(target_config, drafter_config, target, drafter)
