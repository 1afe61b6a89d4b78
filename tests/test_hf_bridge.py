"""Bridge tensors under names of another exporter: found by word and shape, never guessed."""

import dataclasses

import jax.numpy as jnp
import pytest

from dspine_jax.errors import WeightsError
from dspine_jax.hf.names import DRAFTER
from dspine_jax.hf.overrides import split_overrides
from dspine_jax.hf.plan import Plan, resolve
from dspine_jax.hf.tensor_file import TensorInfo
from dspine_jax.weights import abstract_drafter
from tests.checkpoints import DRAFTER as CONFIG

PARAMETERS = abstract_drafter(CONFIG, jnp.dtype("bfloat16"))


def listing(renamed: dict[str, str]) -> dict[str, TensorInfo]:
    """The drafter's own names and shapes, with some tensors renamed."""
    return {renamed.get(name, name): TensorInfo(dtype="BF16", shape=leaf.shape) for name, leaf in PARAMETERS.items()}


def plan(renamed: dict[str, str], *maps: str) -> Plan:
    overrides = split_overrides(maps, {"drafter": PARAMETERS})["drafter"]
    return resolve(DRAFTER, PARAMETERS, listing(renamed), overrides=overrides)


def filled(made: Plan) -> dict[str, tuple[str, str]]:
    return {entry.parameter: (entry.tensor, entry.how) for entry in made.entries}


def test_readouts_and_writes_without_a_suffix_or_below_their_layer():
    made = plan(
        {f"injection.readouts.{n}.weight": f"code_bridge.readouts.{n}" for n in range(3)}
        | {f"injection.writes.{n}.weight": f"layers.{n}.bridge.write.weight" for n in range(3)}
    )
    assert made.faults == ()
    assert filled(made)["injection.readouts.1.weight"] == ("code_bridge.readouts.1", "alias")
    assert filled(made)["injection.writes.2.weight"] == ("layers.2.bridge.write.weight", "alias")


def test_unique_shapes_need_no_known_word():
    made = plan(
        {f"injection.readouts.{n}.weight": f"spine.{n}.alpha.weight" for n in range(3)}
        | {f"injection.writes.{n}.weight": f"spine.{n}.omega.weight" for n in range(3)}
        | {"injection.codebook.weight": "spine.table", "injection.gate_bias": "spine.b"}
    )
    assert made.faults == ()
    assert filled(made)["injection.readouts.2.weight"] == ("spine.2.alpha.weight", "shape")
    assert filled(made)["injection.codebook.weight"] == ("spine.table", "shape")
    assert filled(made)["injection.gate_bias"] == ("spine.b", "shape")


GATES = {
    "injection.receiver_gate.weight": "spine.p.weight",
    "injection.predecessor_gate.weight": "spine.q.weight",
    "injection.message.weight": "spine.r.weight",
}


def test_the_three_projections_of_one_shape_are_never_guessed():
    made = plan(GATES)
    text = "\n".join(made.faults)
    assert len(made.faults) == 6, text
    for parameter, tensor in GATES.items():
        assert any(parameter in fault and "--map" in fault for fault in made.faults), text
        assert any(f"unknown tensor {tensor}" in fault for fault in made.faults), text


def test_one_unnamed_projection_is_not_guessed_either():
    made = plan({"injection.message.weight": "spine.r.weight"})
    assert len(made.faults) == 2
    assert "spine.r.weight BF16 [10, 6] would fit: choose with --map injection.message.weight=NAME" in made.faults[1]


def test_map_settles_them():
    made = plan(GATES, *(f"{parameter}={tensor}" for parameter, tensor in GATES.items()))
    assert made.faults == ()
    assert {filled(made)[parameter] for parameter in GATES} == {(tensor, "map") for tensor in GATES.values()}


def test_map_may_swap_two_tensors_against_their_names():
    left, right = "injection.receiver_gate.weight", "injection.predecessor_gate.weight"
    made = plan({}, f"{left}={right}", f"{right}={left}")
    assert made.faults == ()
    assert filled(made)[left] == (right, "map") and filled(made)[right] == (left, "map")


def test_known_words_for_the_projections():
    made = plan(
        {
            "injection.receiver_gate.weight": "bridge.gate_receiver.weight",
            "injection.predecessor_gate.weight": "bridge.gate_predecessor.weight",
            "injection.message.weight": "bridge.predecessor_value.weight",
            "injection.gate_bias": "bridge.gate_bias",
        }
    )
    assert made.faults == ()


def test_two_candidates_are_an_ambiguity_that_lists_both():
    tensors = listing({"injection.codebook.weight": "spine.one"})
    tensors["spine.two"] = tensors["spine.one"]
    made = resolve(DRAFTER, PARAMETERS, tensors)
    (fault,) = made.faults
    assert "injection.codebook.weight [96, 6] is ambiguous" in fault
    assert "spine.one BF16 [96, 6], spine.two BF16 [96, 6]" in fault and "--map" in fault


def test_a_known_word_with_a_wrong_shape_is_reported_with_both_shapes():
    tensors = listing({"injection.codebook.weight": "bridge.codebook"})
    tensors["bridge.codebook"] = TensorInfo(dtype="BF16", shape=(97, 6))
    (fault,) = resolve(DRAFTER, PARAMETERS, tensors).faults
    assert "injection.codebook.weight: tensor bridge.codebook has shape [97, 6], the config wants [96, 6]" in fault


def test_shapes_that_coincide_are_not_unique():
    """With a vocabulary as wide as the message, the codebook looks like the three projections."""
    narrow = dataclasses.replace(CONFIG, vocab_size=CONFIG.message_dim, mask_token_id=0)
    parameters = abstract_drafter(narrow, jnp.dtype("bfloat16"))
    tensors = {name: TensorInfo(dtype="BF16", shape=leaf.shape) for name, leaf in parameters.items()}
    tensors["spine.table"] = tensors.pop("injection.codebook.weight")
    made = resolve(DRAFTER, parameters, tensors)
    assert len(made.faults) == 2 and "unknown tensor spine.table" in made.faults[0]


def test_a_backbone_bias_is_never_taken_for_a_bridge_tensor():
    tensors = listing({})
    del tensors["injection.gate_bias"]
    tensors["layers.0.self_attn.k_proj.bias"] = TensorInfo(dtype="BF16", shape=(CONFIG.message_dim,))
    made = resolve(DRAFTER, PARAMETERS, tensors)
    assert any("unknown tensor layers.0.self_attn.k_proj.bias" in fault for fault in made.faults)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (["norm.weight"], "cannot be read"),
        (["=x"], "cannot be read"),
        (["norm.weight="], "cannot be read"),
        (["other:norm.weight=x"], "cannot be read"),
        (["norm.weight=x"], "both models have norm.weight; write target:norm.weight=x"),
        (["nothing=x"], "no parameter 'nothing' in the target or the drafter"),
        (["target:norm.weight=x", "target:norm.weight=y"], "twice: 'x' and 'y'"),
    ],
)
def test_malformed_and_ambiguous_map_entries(entries, message):
    with pytest.raises(WeightsError, match=message):
        split_overrides(entries, {"target": {"norm.weight"}, "drafter": {"norm.weight", "fc.weight"}})


def test_map_entries_reach_their_model():
    split = split_overrides(
        ["fc.weight=a=b", "target:norm.weight=c"],
        {"target": {"norm.weight"}, "drafter": {"norm.weight", "fc.weight"}},
    )
    assert split == {"target": {"norm.weight": "c"}, "drafter": {"fc.weight": "a=b"}}
    with pytest.raises(WeightsError, match="only the target is read here"):
        split_overrides(["drafter:fc.weight=x"], {"target": {"norm.weight"}})


def test_map_faults_are_in_the_report():
    made = plan({}, "fc.weight=nowhere", "norm.weight=hidden_norm.weight", "hidden_norm.weight=hidden_norm.weight")
    text = "\n".join(made.faults)
    assert "--map fc.weight=nowhere: the checkpoint has no such tensor" in text
    assert "--map hidden_norm.weight=hidden_norm.weight: that tensor is mapped to norm.weight already" in text
