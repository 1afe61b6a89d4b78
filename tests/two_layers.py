"""The smallest pair that has a layer of each kind: for tests in which compiling is most of the time."""

import functools

from dspine_jax.pair import Pair, build_pair
from tests.tiny import random_drafter, random_target, tiny_drafter_config, tiny_target_config

TARGET = tiny_target_config(num_hidden_layers=2, layer_types=("linear_attention", "full_attention"))
BLOCK = 8


@functools.cache
def two_layer_pair() -> Pair:
    """Random weights, one drafter layer, blocks of 8."""
    drafter = tiny_drafter_config(
        TARGET, num_hidden_layers=1, layer_types=("sliding_attention",), target_layer_ids=(0,), block_size=BLOCK
    )
    return build_pair(TARGET, drafter, random_target(TARGET, 1), random_drafter(drafter, 2))
