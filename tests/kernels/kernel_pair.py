"""A small pair whose sizes every kernel accepts: the head sizes of the 27B, everything else as small as it goes."""

from dspine_jax.pair import Pair
from tests.copying import copying_pair
from tests.tiny import tiny_drafter_config, tiny_target_config

HIDDEN = 256

TARGET = tiny_target_config(
    hidden_size=HIDDEN,
    intermediate_size=128,
    num_hidden_layers=2,
    layer_types=("linear_attention", "full_attention"),
    num_attention_heads=6,
    num_key_value_heads=1,
    head_dim=256,
    partial_rotary_factor=0.25,
    linear_num_key_heads=1,
    linear_num_value_heads=2,
    linear_key_head_dim=128,
    linear_value_head_dim=128,
    vocab_size=512,
    dtype="bfloat16",
)
DRAFTER = tiny_drafter_config(
    TARGET,
    intermediate_size=128,
    num_hidden_layers=1,
    num_attention_heads=4,
    num_key_value_heads=1,
    head_dim=128,
    layer_types=("sliding_attention",),
    sliding_window=48,
    block_size=16,
    target_layer_ids=(0,),
    transfer_dim=HIDDEN,
    message_dim=HIDDEN,
    head_topk=16,
)


def kernel_pair() -> Pair:
    """A drafter that copies what the target mostly does, in bfloat16."""
    return copying_pair(mixing=0.15, target_config=TARGET, drafter_config=DRAFTER)
