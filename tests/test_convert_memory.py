"""Peak memory of conversion and loading, each in a process of its own."""

import json
import math
import shutil
from pathlib import Path

import jax.numpy as jnp

from dspine_jax.config import DrafterConfig, TargetConfig
from dspine_jax.weights import abstract_drafter, abstract_target
from tests.checkpoints import PEAK_MEMORY, python, write_sparse_folder
from tests.tiny import tiny_drafter_config, tiny_target_config

CONVERT = (
    PEAK_MEMORY
    + """
import json, sys
from convert import cli
target, draft, out = sys.argv[1:]
before = peak_bytes()
status = cli.main(["--target", target, "--draft", draft, "--out", out])
print()
print(json.dumps({"status": status, "before": before, "peak": peak_bytes()}))
"""
)

RESTORE = (
    PEAK_MEMORY
    + """
import json, sys
import jax
from dspine_jax import checkpoint
checkpoint.GROUP_BYTES = int(sys.argv[2])
jax.device_put(1.0)
before = peak_bytes()
restored = checkpoint.restore(sys.argv[1])
jax.block_until_ready(restored[2:])
held = sum(array.nbytes for flat in restored[2:] for array in flat.values())
print(json.dumps({"before": before, "peak": peak_bytes(), "held": held}))
"""
)


def sized_pair(layers: int, **sizes: int) -> tuple[TargetConfig, DrafterConfig]:
    kinds = ("linear_attention",) * (layers - 1) + ("full_attention",)
    target = tiny_target_config(dtype="bfloat16", num_hidden_layers=layers, layer_types=kinds, **sizes)
    return target, tiny_drafter_config(target)


def sizes(target: TargetConfig, drafter: DrafterConfig) -> list[int]:
    """Bytes of every parameter of the pair."""
    bfloat16 = jnp.dtype("bfloat16")
    leaves = [*abstract_target(target, bfloat16).values(), *abstract_drafter(drafter, bfloat16).values()]
    return [math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves]


def measured(script: str, *arguments: str | Path) -> dict[str, int]:
    return json.loads(python(script, *arguments).stdout.splitlines()[-1])


def test_converting_three_gigabytes_holds_about_one_tensor(tmp_path):
    """Below 1.5 times the largest tensor plus 1 GiB, the program itself included."""
    pair = sized_pair(11, hidden_size=2048, vocab_size=100_000, intermediate_size=16_384)
    assert sum(sizes(*pair)) > 3e9
    folders = [write_sparse_folder(tmp_path / config.__class__.__name__, config) for config in pair]
    try:
        got = measured(CONVERT, *folders, tmp_path / "out")
    finally:
        # Test folders outlive the run; these gigabytes should not.
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        shutil.rmtree(tmp_path / "out.incomplete", ignore_errors=True)
    largest = max(sizes(*pair))
    assert got["status"] == 0
    assert got["peak"] < 1.5 * largest + 2**30
    # Tighter than promised, so that a second copy of a tensor shows.
    assert got["peak"] - got["before"] < 1.5 * largest


def test_restoring_holds_the_model_once(tmp_path):
    """Also where every tensor is larger than a group."""
    pair = sized_pair(12, hidden_size=1024, vocab_size=20_000, intermediate_size=4096)
    total = sum(sizes(*pair))
    # Reading holds two or three tensors or groups beside the model: they must be small beside it.
    assert total > 4 * max(*sizes(*pair), 64 * 2**20)
    folders = [write_sparse_folder(tmp_path / config.__class__.__name__, config) for config in pair]
    got = measured(CONVERT, *folders, tmp_path / "out")
    assert got["status"] == 0 and got["peak"] - got["before"] < 1.6 * total
    for group_bytes in (1, 64 * 2**20):
        restored = measured(RESTORE, tmp_path / "out", str(group_bytes))
        assert restored["held"] == total
        assert restored["peak"] - restored["before"] < 1.6 * total
    shutil.rmtree(tmp_path / "out")
