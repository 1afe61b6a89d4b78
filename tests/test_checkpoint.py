"""Restoring a converted folder: on any number of devices, and only from a folder that is what it says."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from convert import cli
from dspine_jax.checkpoint import restore
from dspine_jax.errors import WeightsError
from tests.checkpoints import DRAFTER, TARGET, expected_flat, flat_equal, python, write_pair

CONVERT = """
import sys
import jax
from convert import cli
assert len(jax.devices()) == int(sys.argv[1])
sys.exit(cli.main(["--target", sys.argv[2], "--draft", sys.argv[3], "--out", sys.argv[4]]))
"""

DIGEST = """
import hashlib, sys
import jax, numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from dspine_jax.checkpoint import restore
count = int(sys.argv[2])
assert len(jax.devices()) == count
mesh = jax.make_mesh((count,), ("all",))
replicated = NamedSharding(mesh, PartitionSpec())
for sharding, holders in ((None, 1), (replicated, count)):
    digest = hashlib.sha256()
    for flat in restore(sys.argv[1], sharding=sharding)[2:]:
        for name, array in sorted(flat.items()):
            assert len(array.sharding.device_set) == holders, (name, array.sharding)
            digest.update(name.encode() + np.asarray(array).tobytes())
    print(digest.hexdigest())
"""


@pytest.fixture(scope="module")
def converted(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("converted")
    target, draft = write_pair(root)
    assert cli.main(["--target", str(target), "--draft", str(draft), "--out", str(root / "out")]) == 0
    return root / "out"


@pytest.fixture
def copy(converted, tmp_path) -> Path:
    return Path(shutil.copytree(converted, tmp_path / "copy"))


def test_saved_on_any_number_of_devices_restored_on_any(converted, tmp_path):
    target, draft = converted.parent / "hf-target", converted.parent / "hf-draft"
    python(CONVERT, "4", target, draft, tmp_path / "of-4", devices=4)
    digests = set()
    for folder, devices in ((converted, 1), (converted, 2), (converted, 4), (tmp_path / "of-4", 1)):
        digests.update(python(DIGEST, folder, str(devices), devices=devices).stdout.split())
    assert len(digests) == 1
    assert flat_equal(restore(tmp_path / "of-4")[2], expected_flat(TARGET, 1))


def test_a_moved_folder_restores(copy):
    target_config, drafter_config, target_flat, drafter_flat = restore(copy)
    assert (target_config, drafter_config) == (TARGET, DRAFTER)
    assert flat_equal(target_flat, expected_flat(TARGET, 1)) and flat_equal(drafter_flat, expected_flat(DRAFTER, 2))


def test_a_relative_path_restores(copy, monkeypatch):
    monkeypatch.chdir(copy.parent)
    assert restore("copy")[0] == TARGET


def edit(change: Callable[[dict], object]) -> Callable[[Path], None]:
    """A damage that changes the manifest."""

    def damage(folder: Path) -> None:
        content = json.loads((folder / "manifest.json").read_text())
        change(content)
        (folder / "manifest.json").write_text(json.dumps(content))

    return damage


HEAD = "weights/target/lm_head.weight/0.0"

DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no manifest": (lambda f: (f / "manifest.json").unlink(), "incomplete: it has no manifest"),
    "no file": (
        lambda f: (f / HEAD).unlink(),
        f"(?s)incomplete or damaged.*{HEAD} has no bytes, 7680 were written",
    ),
    "short file": (lambda f: (f / HEAD).write_bytes(b"12"), f"{HEAD} has 2 bytes, 7680 were written"),
    "no weights": (lambda f: shutil.rmtree(f / "weights" / "drafter"), "incomplete or damaged"),
    "cut manifest": (lambda f: (f / "manifest.json").write_text('{"format"'), "not valid JSON"),
    "other format": (edit(lambda m: m.update(format="x")), "format is 'x', wanted"),
    "other version": (
        edit(lambda m: m.update(format_version=2)),
        "format_version is 2, this program reads 1",
    ),
    "missing field": (edit(lambda m: m.pop("files")), r"missing fields \['files'\]"),
    "unknown field": (edit(lambda m: m.update(more=1)), r"unknown fields \['more'\]"),
    "wrong type": (edit(lambda m: m.update(files=[])), "files is no dict"),
    "other config": (
        edit(lambda m: m["configs"]["drafter"].update(intermediate_size=46)),
        r"mlp\.up_proj\.weight is stored as \(\[44, 40\], 'bfloat16'\), the config wants \(\[46, 40\]",
    ),
    "other dtype": (edit(lambda m: m.update(dtype="float32")), "does not fit its own config"),
    "unlisted parameter": (
        edit(lambda m: m["parameters"]["target"].pop("norm.weight")),
        r"target parameter norm\.weight is missing",
    ),
    "unknown parameter": (
        edit(lambda m: m["parameters"]["target"].update(extra={})),
        "target parameter extra is unknown",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_folder_is_refused(copy, damage):
    apply, message = DAMAGES[damage]
    apply(copy)
    with pytest.raises(WeightsError, match=message):
        restore(copy)


def test_other_folders_are_refused_with_advice(tmp_path, converted):
    with pytest.raises(WeightsError, match="no such folder"):
        restore(tmp_path / "none")
    with pytest.raises(WeightsError, match=r"no converted folder.*load_hf"):
        restore(converted.parent / "hf-target")
