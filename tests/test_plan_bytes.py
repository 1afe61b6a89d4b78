"""The bytes of a plan: against the checkpoint's layout, values worked out by hand, and a compiled program."""

import gzip
import json
import math
from pathlib import Path

import jax.numpy as jnp
import pytest

from dspine_jax.config import DrafterConfig, TargetConfig
from dspine_jax.deviceless import abstract_gpu
from dspine_jax.drafter.propose import DraftOptions
from dspine_jax.planning import presets
from dspine_jax.planning.gpu import GPU
from dspine_jax.planning.memory import bytes_of, state_parts, weight_parts
from dspine_jax.planning.pair import AbstractPair, positions, slots
from dspine_jax.planning.programs import PROGRAMS, compile_programs, kernel_obstacle, lower
from dspine_jax.planning.traffic import cycle, plain_step
from tests import configs

NAMES = Path(__file__).parent / "golden" / "qwen3_8_27b_names.json.gz"
FLOAT32 = ("A_log", "dt_bias", "linear_attn.norm.weight")
V, H, C, M = 248320, 5120, 1024, 512


@pytest.fixture(scope="module")
def pair():
    return AbstractPair.build(presets.read_target("qwen3.8-27b"), presets.read_drafter("qwen3.8-27b-dspine-b16"))


def test_presets_are_the_released_configurations():
    assert presets.read_target("qwen3.8-27b") == TargetConfig.from_hf(configs.TARGET)
    assert presets.read_target("qwen3-8b") == TargetConfig.from_hf(configs.QWEN3_8B)
    assert presets.read_drafter("qwen3.8-27b-dspine-b16") == DrafterConfig.from_hf(configs.DRAFTER)


def test_target_weights_are_the_checkpoint_to_the_byte(pair):
    listed = json.loads(gzip.decompress(NAMES.read_bytes()))["tensors"]
    text = {name: shape for name, shape in listed.items() if not name.startswith("model.visual.")}
    assert len(text) == len(pair.weights.target) == 851
    wanted = sum(math.prod(shape) * (4 if name.endswith(FLOAT32) else 2) for name, shape in text.items())
    assert weight_parts(pair)["target"] == wanted


def test_a_plain_target_by_hand():
    """8.19 billion parameters, as the model's card says, and nothing recurrent; with its drafter."""
    target = presets.read_target("qwen3-8b")
    hidden, inner = 4096, 12288
    layer = 2 * hidden * 4096 + 2 * hidden * 1024 + 2 * 128 + 3 * hidden * inner + 2 * hidden
    drafter = presets.read_drafter("qwen3-8b-dspine-b16")
    pair = AbstractPair.build(target, drafter)
    assert weight_parts(pair)["target"] == 2 * (2 * 151936 * hidden + 36 * layer + hidden) == 2 * 8_190_735_360
    bridge = 5 * (1024 * hidden + hidden * 512) + 3 * 512 * 1024 + 512
    assert weight_parts(pair)["drafter"] == 2 * (5 * hidden * hidden + 2 * hidden + 5 * layer + bridge)
    assert weight_parts(pair)["codebook"] == 2 * 151936 * 1024
    state = state_parts(pair.state(2, 1000))
    assert state["target_kv"] == 2 * 1024 * 36 * 2 * 8 * 128 * 2
    assert state["gdn_states"] == state["gdn_records"] == state["conv_windows"] == 0
    passed = plain_step(pair, 1, 1000)
    assert passed.parts["gdn_states"] == 0 and passed.parts["target_kv"] == 36 * 1001 * 2 * 8 * 128 * 2


def test_drafter_weights_by_hand(pair):
    layer = 2 * 4096 * H + 2 * 1024 * H + 2 * 128 + 3 * 17408 * H + 2 * H
    bridge = 5 * (C * H + H * M) + 3 * M * C + M
    parts = weight_parts(pair)
    assert parts["drafter"] == 2 * (5 * H * H + 2 * H + 5 * layer + bridge)
    assert parts["codebook"] == 2 * V * C
    assert parts["fp8_head"] == V * H + 4 * V
    assert parts["tail_tables"] == 0


def test_options_decide_which_derived_tensors_there_are(pair):
    options = DraftOptions(retrieval="direct", tail="table")
    parts = weight_parts(AbstractPair.build(pair.target_config, pair.drafter_config, options=options))
    assert parts["fp8_head"] == 0
    assert parts["tail_tables"] == 2 * V * 3 * M


def test_state_by_hand(pair):
    state = pair.state(8, 32752)
    assert (slots(state), positions(state)) == (8, 32768)
    parts = state_parts(state)
    assert parts["target_kv"] == 16 * 8 * 32768 * 2 * 4 * 256 * 2
    assert parts["gdn_states"] == 48 * 8 * 48 * 128 * 128 * 4
    assert parts["gdn_records"] == 48 * 8 * 16 * (16 * 128 + 48 * 128 + 48) * 4
    assert parts["conv_windows"] == 48 * 8 * (16 + 3) * (2 * 16 * 128 + 48 * 128) * 2
    assert parts["draft_rings"] == 5 * 8 * (8192 + 16) * 2 * 8 * 128 * 2
    assert sum(parts.values()) == bytes_of(state)


def test_sizes_are_rounded_up_as_requests_are(pair):
    state = pair.state(3, 32753)
    assert (slots(state), positions(state)) == (4, 65536)


def test_float32_doubles_what_the_model_dtype_holds(pair):
    wide = AbstractPair.build(pair.target_config, pair.drafter_config, jnp.float32)
    assert weight_parts(wide)["drafter"] == 2 * weight_parts(pair)["drafter"]
    assert weight_parts(wide)["fp8_head"] == weight_parts(pair)["fp8_head"]
    assert state_parts(wide.state(1, 1000))["gdn_states"] == state_parts(pair.state(1, 1000))["gdn_states"]


def test_a_cycle_of_one_slot_by_hand(pair):
    context = 32752
    one = cycle(pair, 1, context)
    embedding = 2 * V * H
    assert one.parts["target_weights"] == weight_parts(pair)["target"] - embedding
    assert one.parts["target_kv"] == 16 * (context + 16) * 2 * 4 * 256 * 2
    assert one.parts["gdn_states"] == 48 * 2 * 48 * 128 * 128 * 4
    assert one.parts["retrieval_head"] == V * (H + 4)
    assert one.parts["head_rows"] == 15 * 128 * H * 2
    assert one.parts["draft_rings"] == 5 * (8191 + 16) * 2 * 8 * 128 * 2
    assert one.parts["logits"] == 2 * 16 * V * 4
    assert one.bytes == sum(one.parts.values())


def test_floors_of_the_released_pair(pair):
    """The figures that the design started from: 10.7 ms for the target's weights, 1.09 plain steps a cycle."""
    gpu = GPU.read("h200")
    one, plain = cycle(pair, 1, 2032), plain_step(pair, 1, 2032)
    assert one.parts["target_weights"] / gpu.bandwidth == pytest.approx(10.7e-3, rel=0.01)
    assert one.parts["drafter_weights"] / gpu.bandwidth == pytest.approx(0.74e-3, rel=0.01)
    assert plain.seconds(gpu) == pytest.approx(10.8e-3, rel=0.01)
    assert one.seconds(gpu) / plain.seconds(gpu) == pytest.approx(1.10, abs=0.01)


def test_many_slots_are_bound_by_arithmetic(pair):
    gpu = GPU.read("h200")
    assert gpu.peak is not None
    few, many = cycle(pair, 1, 1008), cycle(pair, 64, 1008)
    assert few.seconds(gpu) == few.bytes / gpu.bandwidth
    assert many.seconds(gpu) == many.operations / gpu.peak > many.bytes / gpu.bandwidth
    # Two operations for each weight but the embedding, per row.
    products = (few.parts["target_weights"] + few.parts["drafter_weights"]) / 2
    assert few.operations == pytest.approx(2 * 16 * products, rel=0.1)


def test_a_compiled_program_takes_exactly_the_counted_arguments():
    tiny = AbstractPair.build(*configs.two_layer_pair())
    state = tiny.state(2, 200)
    (program,) = compile_programs(tiny, state, abstract_gpu("h200"), chunk=32, names=("cycle",))
    assert program.argument_bytes == sum(weight_parts(tiny).values()) + sum(state_parts(state).values())
    assert program.temporary_bytes > 0 and program.lower_seconds > 0 and program.compile_seconds > 0
    assert program.new_output_bytes < 4096  # the table of the results' addresses


def test_every_program_can_be_traced_for_a_gpu():
    tiny, gpu = AbstractPair.build(*configs.two_layer_pair()), abstract_gpu("b200")
    with gpu.current():
        for name in PROGRAMS:
            text = lower(name, tiny, tiny.state(2, 200), gpu, chunk=48).as_text()
            assert ("2x48xi32" in text) == (name == "prefill_chunk")
        with pytest.raises(ValueError, match="wanted one of"):
            lower("nothing", tiny, tiny.state(2, 200), gpu, chunk=48)


def test_kernels_run_on_hopper_and_blackwell():
    assert kernel_obstacle(abstract_gpu("h200")) is None
    assert kernel_obstacle(abstract_gpu("b200")) is None
