"""Model folders: one file or shards with an index, and what is wrong with them."""

import json

import numpy as np
import pytest

from dspine_jax.errors import WeightsError
from dspine_jax.hf.folder import open_folder
from tests.checkpoints import write_folder, write_safetensors

TENSORS = {"a": np.ones(2, np.float32), "b": np.zeros((2, 3), np.float32), "c": np.full(1, 7, np.float32)}
INDEX = "model.safetensors.index.json"


def test_single_file(tmp_path):
    folder = open_folder(write_folder(tmp_path / "m", {"x": 1}, TENSORS))
    assert folder.config == {"x": 1} and folder.generation_config is None and not folder.broken
    assert {name: info.shape for name, info in folder.tensors.items()} == {"a": (2,), "b": (2, 3), "c": (1,)}


def test_shards(tmp_path):
    path = write_folder(tmp_path / "m", {}, TENSORS, shards={"a": "m-1.safetensors", "b": "m-2.safetensors"})
    folder = open_folder(path)
    assert [file.name for file in folder.files] == ["m-1.safetensors", "m-2.safetensors"]
    assert folder.where["b"].name == "m-2.safetensors" and folder.where["c"].name == "m-1.safetensors"
    np.testing.assert_array_equal(folder.where["c"].read("c"), [7])


def test_a_missing_shard_and_a_tensor_missing_from_its_shard_are_noted(tmp_path):
    path = write_folder(tmp_path / "m", {}, TENSORS, shards={"a": "m-1.safetensors", "b": "m-2.safetensors"})
    weight_map = json.loads((path / INDEX).read_text())["weight_map"]
    (path / INDEX).write_text(json.dumps({"weight_map": weight_map | {"d": "m-1.safetensors"}}))
    (path / "m-2.safetensors").unlink()
    folder = open_folder(path)
    assert "m-2.safetensors, and that shard is missing" in folder.broken["b"]
    assert "m-1.safetensors, and that shard does not hold it" in folder.broken["d"]
    assert folder.where.keys() == {"a", "c"}


def test_a_tensor_that_the_index_places_elsewhere_or_nowhere_is_noted(tmp_path):
    path = write_folder(tmp_path / "m", {}, TENSORS, shards={"a": "m-1.safetensors", "b": "m-2.safetensors"})
    write_safetensors(path / "m-1.safetensors", TENSORS)
    (path / INDEX).write_text(json.dumps({"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}}))
    folder = open_folder(path)
    assert folder.where.keys() == {"a"}
    assert "m-1.safetensors holds it, and the index places it in m-2.safetensors" in folder.broken["b"]
    assert "no shard at all" in folder.broken["c"]


@pytest.mark.parametrize(
    "shard", ["../x.safetensors", "/x.safetensors", "a/x.safetensors", "..\\x.safetensors", 3, "x"]
)
def test_an_index_cannot_leave_its_folder(tmp_path, shard):
    path = write_folder(tmp_path / "m", {}, TENSORS, shards={"a": "m-1.safetensors"})
    write_safetensors(tmp_path / "x.safetensors", TENSORS)
    (path / INDEX).write_text(json.dumps({"weight_map": {"a": shard}}))
    with pytest.raises(WeightsError, match=r"tensor 'a' points to .* plain \*\.safetensors name"):
        open_folder(path)


@pytest.mark.parametrize("content", ["{}", '{"weight_map": {}}', '{"weight_map": 3}'])
def test_an_index_without_a_map_is_refused(tmp_path, content):
    path = write_folder(tmp_path / "m", {}, TENSORS, shards={"a": "m-1.safetensors"})
    (path / INDEX).write_text(content)
    with pytest.raises(WeightsError, match="weight_map must be"):
        open_folder(path)


def test_two_sets_of_weights_are_refused(tmp_path):
    path = write_folder(tmp_path / "m", {}, TENSORS, shards={"a": "m-1.safetensors"})
    write_safetensors(path / "model.safetensors", TENSORS)
    with pytest.raises(WeightsError, match="remove the set that is out of date"):
        open_folder(path)


def test_folders_without_readable_content_are_refused(tmp_path):
    with pytest.raises(WeightsError, match="no such folder"):
        open_folder(tmp_path / "nowhere")
    with pytest.raises(WeightsError, match=r"no config\.json"):
        open_folder(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(WeightsError, match=r"found pytorch_model\.bin; pickled weights are never read"):
        open_folder(tmp_path)
    (tmp_path / "config.json").write_text("[1]")
    write_safetensors(tmp_path / "model.safetensors", TENSORS)
    with pytest.raises(WeightsError, match="holds a JSON list"):
        open_folder(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(WeightsError, match="not valid JSON"):
        open_folder(tmp_path)
