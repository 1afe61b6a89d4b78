"""Writes target.npz and VERSIONS: what transformers computes for the cases of `tests/target_cases.py`.

    .venv/bin/python tests/golden/make_golden.py

Run with the project's Python; it starts torch in the environment of `tests/peers.py`. Weights and tokens are drawn
from the seeds of the cases. To keep the file small, layer outputs and logits are stored for a few rows of the first
slot only.
"""

import json
import sys
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parent.parent))

from tests.target_cases import CASES, GOLDEN_ROWS  # noqa: E402
from tests.torch_jobs import run_torch  # noqa: E402


def thin(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The first slot, and only GOLDEN_ROWS of what exists for every row."""
    return {
        key: value[:1, GOLDEN_ROWS] if key.endswith("/logits") or "/layer/" in key else value[:1]
        for key, value in arrays.items()
    }


def main() -> None:
    arrays = run_torch(CASES)
    versions = json.loads(str(arrays.pop("versions")))
    np.savez_compressed(FOLDER / "target.npz", **thin(arrays))
    record = {"versions": versions, "seeds": {case.name: case.seed for case in CASES}}
    (FOLDER / "VERSIONS").write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
