"""Reading a pair of Hugging Face folders: values, dtypes, and refusals before anything is compiled."""

import dataclasses
import json
import tracemalloc
from pathlib import Path

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from dspine_jax.config import ConfigError
from dspine_jax.errors import WeightsError
from dspine_jax.hf import read_pair_hf, transforms
from dspine_jax.hf.plan import Entry
from dspine_jax.hf.tensor_file import TensorFile
from tests.checkpoints import (
    DRAFTER,
    TARGET,
    drafter_tensors,
    expected_flat,
    flat_equal,
    python,
    same_bits,
    target_tensors,
    write_folder,
    write_pair,
    write_safetensors,
)

QUANTIZATION = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "activation_scheme": "dynamic",
    "weight_block_size": [16, 24],
}


def in_float32(config):
    return dataclasses.replace(config, dtype="float32")


@pytest.mark.parametrize("prefix", ["model.language_model.", "model."])
def test_values_and_configs_arrive_bit_for_bit(tmp_path, prefix):
    target = write_folder(tmp_path / "t", TARGET.to_hf(), target_tensors(prefix=prefix))
    draft = write_folder(tmp_path / "d", DRAFTER.to_hf(), drafter_tensors())
    target_config, drafter_config, target_flat, drafter_flat = read_pair_hf(target=target, draft=draft)
    assert (target_config, drafter_config) == (TARGET, DRAFTER)
    assert flat_equal(target_flat, expected_flat(TARGET, 1))
    assert flat_equal(drafter_flat, expected_flat(DRAFTER, 2))


def test_float32_files_become_bfloat16_except_what_must_stay(tmp_path):
    target, draft = write_pair(tmp_path, target=in_float32(TARGET), drafter=in_float32(DRAFTER))
    target_config, drafter_config, target_flat, drafter_flat = read_pair_hf(
        target=target, draft=draft, dtype="bfloat16"
    )
    assert target_config.dtype == drafter_config.dtype == "bfloat16"
    assert flat_equal(target_flat, expected_flat(in_float32(TARGET), 1, "bfloat16"))
    assert flat_equal(drafter_flat, expected_flat(in_float32(DRAFTER), 2, "bfloat16"))
    kept = {name.split(".", 2)[2] for name, value in target_flat.items() if value.dtype == jnp.float32}
    assert kept == {"linear_attn.A_log", "linear_attn.dt_bias", "linear_attn.norm.weight"}


def test_bfloat16_files_widen_exactly(tmp_path):
    target, draft = write_pair(tmp_path)
    _, _, target_flat, drafter_flat = read_pair_hf(target=target, draft=draft, dtype="float32")
    for flat, config, seed in ((target_flat, TARGET, 1), (drafter_flat, DRAFTER, 2)):
        assert {str(value.dtype) for value in flat.values()} == {"float32"}
        assert all(
            same_bits(flat[name], value.astype("float32")) for name, value in expected_flat(config, seed).items()
        )


def test_bfloat16_decay_parameters_are_kept_as_float32(tmp_path):
    narrow = {name: value.astype(ml_dtypes.bfloat16) for name, value in target_tensors().items()}
    target = write_folder(tmp_path / "t", TARGET.to_hf(), narrow)
    draft = write_folder(tmp_path / "d", DRAFTER.to_hf(), drafter_tensors())
    _, _, flat, _ = read_pair_hf(target=target, draft=draft)
    name = "layers.0.linear_attn.A_log"
    assert same_bits(flat[name], narrow[f"model.language_model.{name}"].astype(np.float32))


def test_float16_needs_a_choice_of_dtype(tmp_path):
    halves = {name: value.astype(np.float16) for name, value in target_tensors(in_float32(TARGET)).items()}
    target = write_folder(tmp_path / "t", dataclasses.replace(TARGET, dtype="float16").to_hf(), halves)
    draft = write_folder(tmp_path / "d", DRAFTER.to_hf(), drafter_tensors())
    with pytest.raises(WeightsError, match=r"declares dtype float16.*float32 \(exact"):
        read_pair_hf(target=target, draft=draft)
    with pytest.raises(WeightsError, match="dtype 'int8' is not supported"):
        read_pair_hf(target=target, draft=draft, dtype="int8")
    _, _, flat, _ = read_pair_hf(target=target, draft=draft, dtype="float32")
    assert same_bits(flat["norm.weight"], halves["model.language_model.norm.weight"].astype(np.float32))


def block_scaled_target(folder: Path) -> tuple[Path, dict[str, np.ndarray]]:
    """Every projection in FP8, the last blocks being partial; and what they mean, element by element."""
    rng = np.random.default_rng(5)
    rows, columns = QUANTIZATION["weight_block_size"]
    tensors, meaning = target_tensors(), {}
    for name in list(tensors):
        if "_proj" not in name:
            continue
        shape = tensors[name].shape
        stored = rng.integers(0, 0x7F, shape).astype(np.uint8) | (rng.integers(0, 2, shape) << 7).astype(np.uint8)
        scale = rng.uniform(1e-3, 1e-2, (-(-shape[0] // rows), -(-shape[1] // columns))).astype(np.float32)
        tensors[name] = stored.view(ml_dtypes.float8_e4m3fn)
        tensors[f"{name}_scale_inv"] = scale
        values = tensors[name].astype(np.float64)
        for i, j in np.ndindex(shape):
            values[i, j] *= scale[i // rows, j // columns]
        meaning[name.removeprefix("model.language_model.")] = values
    return write_folder(folder, TARGET.to_hf() | {"quantization_config": QUANTIZATION}, tensors), meaning


@pytest.mark.parametrize("block_bytes", [1, 1000, 2**25])
def test_block_scaled_weights_mean_value_times_scale(tmp_path, monkeypatch, block_bytes):
    """The drafter of a quantised target stays as it is."""
    monkeypatch.setattr(transforms, "BLOCK_BYTES", block_bytes)
    target, meaning = block_scaled_target(tmp_path / "t")
    draft = write_folder(tmp_path / "d", DRAFTER.to_hf(), drafter_tensors())
    _, _, target_flat, drafter_flat = read_pair_hf(target=target, draft=draft, dtype="float32")
    assert len(meaning) == 4 + 4 * 3 + 3 * 5
    for name, values in meaning.items():
        # A product of an FP8 and a float32 number, rounded once to float32.
        np.testing.assert_array_equal(np.asarray(target_flat[name]), values.astype(np.float32), err_msg=name)
    assert flat_equal(drafter_flat, {k: v.astype("float32") for k, v in expected_flat(DRAFTER, 2).items()})


def test_each_missing_scale_is_named(tmp_path):
    target, _ = block_scaled_target(tmp_path / "t")
    draft = write_folder(tmp_path / "d", DRAFTER.to_hf(), drafter_tensors())
    gone = [f"model.language_model.layers.{name}_proj.weight_scale_inv" for name in ("0.mlp.up", "3.self_attn.v")]
    kept = {name: value for name, value in _stored(target).items() if name not in gone}
    write_safetensors(target / "model.safetensors", kept)
    with pytest.raises(WeightsError, match="2 faults") as error:
        read_pair_hf(target=target, draft=draft)
    assert all(f"its scale {name} is missing" in str(error.value) for name in gone)


def _stored(folder: Path) -> dict[str, np.ndarray]:
    file = TensorFile(folder / "model.safetensors")
    return {name: file.read(name) for name in file.tensors}


@pytest.mark.parametrize("block_bytes", [1, 300])
def test_small_row_blocks_change_nothing(tmp_path, monkeypatch, block_bytes):
    monkeypatch.setattr(transforms, "BLOCK_BYTES", block_bytes)
    target, draft = write_pair(tmp_path, target=in_float32(TARGET), drafter=in_float32(DRAFTER))
    _, _, target_flat, _ = read_pair_hf(target=target, draft=draft, dtype="bfloat16")
    assert flat_equal(target_flat, expected_flat(in_float32(TARGET), 1, "bfloat16"))


def test_a_pair_that_does_not_fit_is_refused_with_all_reasons(tmp_path):
    target, draft = write_pair(tmp_path)
    other = dataclasses.replace(DRAFTER, hidden_size=48, vocab_size=97)
    (draft / "config.json").write_text(json.dumps(other.to_hf()))
    with pytest.raises(ConfigError, match=r"(?s)hidden_size.*vocab_size"):
        read_pair_hf(target=target, draft=draft)


def test_a_quantised_drafter_config_is_refused(tmp_path):
    target, draft = write_pair(tmp_path)
    (draft / "config.json").write_text(json.dumps(DRAFTER.to_hf() | {"quantization_config": QUANTIZATION}))
    with pytest.raises(ConfigError, match="quantization_config"):
        read_pair_hf(target=target, draft=draft)


def test_faults_of_both_checkpoints_are_in_one_report(tmp_path):
    target = write_folder(tmp_path / "t", TARGET.to_hf(), {"a": np.ones(1, np.float32)} | target_tensors())
    draft = write_folder(tmp_path / "d", DRAFTER.to_hf(), {"b": np.ones(1, np.float32)} | drafter_tensors())
    with pytest.raises(WeightsError, match=r"(?s)target checkpoint .*unknown tensor a .*drafter checkpoint .* b "):
        read_pair_hf(target=target, draft=draft)


def test_a_bad_index_entry_of_an_ignored_family_is_a_warning(tmp_path):
    draft = write_folder(tmp_path / "d", DRAFTER.to_hf(), drafter_tensors())
    tensors = target_tensors()
    target = write_folder(tmp_path / "t", TARGET.to_hf(), tensors, shards=dict.fromkeys(tensors, "m-1.safetensors"))
    index = target / "model.safetensors.index.json"
    weight_map = json.loads(index.read_text())["weight_map"] | {"mtp.fc.weight": "m-1.safetensors"}
    index.write_text(json.dumps({"weight_map": weight_map}))
    with pytest.warns(UserWarning, match=r"mtp\.fc\.weight.*harmless"):
        _, _, flat, _ = read_pair_hf(target=target, draft=draft)
    assert flat_equal(flat, expected_flat(TARGET, 1))
    index.write_text(json.dumps({"weight_map": weight_map | {"model.norm.weight": "m-2.safetensors"}}))
    with pytest.raises(WeightsError, match=r"model\.norm\.weight: the index places it in m-2\.safetensors"):
        read_pair_hf(target=target, draft=draft)


def test_map_reaches_the_reader(tmp_path):
    tensors = drafter_tensors()
    tensors["odd"] = tensors.pop("injection.message.weight")
    draft = write_folder(tmp_path / "d", DRAFTER.to_hf(), tensors)
    target = write_folder(tmp_path / "t", TARGET.to_hf(), target_tensors())
    with pytest.raises(WeightsError, match=r"injection\.message\.weight"):
        read_pair_hf(target=target, draft=draft)
    *_, flat = read_pair_hf(target=target, draft=draft, map=["injection.message.weight=odd"])
    assert flat_equal(flat, expected_flat(DRAFTER, 2))


def test_reading_imports_no_torch_and_no_safetensors_library(tmp_path):
    target, draft = write_pair(tmp_path)
    code = """
import sys
from dspine_jax.hf import read_pair_hf
read_pair_hf(target=sys.argv[1], draft=sys.argv[2])
print(sorted(name for name in ("torch", "transformers", "safetensors") if name in sys.modules))
"""
    assert python(code, target, draft).stdout.strip() == "[]"


def test_a_cast_never_holds_a_second_copy(tmp_path, monkeypatch):
    monkeypatch.setattr(transforms, "BLOCK_BYTES", 2**20)
    write_safetensors(tmp_path / "a.safetensors", {"x": np.ones((4096, 2048), np.float32)})
    file = TensorFile(tmp_path / "a.safetensors")
    entry = Entry(
        parameter="x",
        shape=(4096, 2048),
        dtype=np.dtype(ml_dtypes.bfloat16),
        tensor="x",
        source=file.tensors["x"],
        transform="identity",
        how="name",
    )
    tracemalloc.start()
    try:
        value = transforms.read_entry(entry, {"x": file})
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (value == 1).all()
    assert peak < entry.nbytes + 3 * 2**20
