"""The output gate's switch, which transformers' implementation does not have."""

import dataclasses

import numpy as np

from tests.target_cases import PLAIN, SLOTS
from tests.target_runner import TargetRunner
from tests.tiny import random_target, tiny_target_config
from tests.tolerances import FP32_LOGITS, assert_close


def test_no_gate_equals_a_gate_of_one_half_undone():
    """Zero gate weights multiply the heads by sigmoid(0) = 1/2; a doubled o_proj undoes that exactly."""
    gated = tiny_target_config(num_hidden_layers=1, layer_types=("full_attention",))
    heads, dim = gated.num_attention_heads, gated.head_dim
    q, o = (f"layers.0.self_attn.{name}.weight" for name in ("q_proj", "o_proj"))
    flat = random_target(gated, 6)
    by_head = np.array(flat[q]).reshape(heads, 2, dim, gated.hidden_size)
    by_head[:, 1] = 0
    with_gate = flat | {q: by_head.reshape(flat[q].shape), o: 2 * flat[o]}
    without = flat | {q: by_head[:, 0].reshape(heads * dim, -1)}

    def logits(config, flat):
        target = TargetRunner(config, flat)
        return target.read(PLAIN.ids[:, :8], 0, 8, target.cache(SLOTS), commit=True).logits

    want = logits(gated, with_gate)
    got = logits(dataclasses.replace(gated, attn_output_gate=False), without)
    assert_close("logits", got, want, FP32_LOGITS)
