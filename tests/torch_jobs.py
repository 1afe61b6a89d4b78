"""Jobs for `torch_target.py`: cases out, transformers' numbers back."""

import json
import tempfile
from collections.abc import Iterable
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from tests import peers
from tests.target_cases import Case
from tests.tiny import random_target

SCRIPT = Path(__file__).with_name("torch_target.py")


def run_torch(cases: Iterable[Case]) -> dict[str, np.ndarray]:
    """All that the script answers, by its keys; one process for all cases."""
    cases = list(cases)
    arrays = {}
    for case in cases:
        arrays[f"{case.name}/ids"] = case.ids
        for name, value in random_target(case.config, case.seed).items():
            # bfloat16 has no NumPy type; float32 holds it exactly.
            arrays[f"{case.name}/weights/{name}"] = np.asarray(value.astype(jnp.float32))
    described = [{"name": case.name, "config": case.hf_config, "prefixes": case.prefixes} for case in cases]
    with tempfile.TemporaryDirectory() as folder:
        job, out = Path(folder, "job.npz"), Path(folder, "out.npz")
        np.savez(job, cases=json.dumps(described), **arrays)
        peers.run(SCRIPT, job, out)
        with np.load(out) as answer:
            return dict(answer)
