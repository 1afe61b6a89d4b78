"""Other programs on the same weights and prompts, in the same run: transformers' generate, in its own process."""

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from dspine_jax.generate import Generation
from dspine_jax.training.export import write_target
from serve.benchmark.measurement import Bench, as_json
from serve.benchmark.timeline import Timeline, figures, over_repeats

SCRIPT = Path(__file__).with_name("transformers_peer.py")
LARGEST_BYTES = 2 * 2**30
LIMIT_SECONDS = 1800


def check(python: Path) -> None:
    """Raises OSError when there is no such interpreter."""
    if not python.is_file():
        raise OSError(
            f"--peers: {python} does not exist; make an environment with pip install 'dspine-jax[peers]' (Python 3.10"
            " to 3.13) and name its interpreter with --peers-python"
        )


def measure(bench: Bench, python: Path) -> dict[str, Any]:
    """The `peers` object of a report. Raises OSError when the process fails."""
    weights = dict(zip(bench.pair.plan.target.names, bench.pair.weights.target, strict=True))
    size = sum(leaf.nbytes for leaf in weights.values())
    if size > LARGEST_BYTES:
        raise OSError(f"--peers: the target has {size / 2**30:.1f} GiB, and the peers run on the CPU; at most 2 GiB")
    plain = [bench.plain.collect(batch, bench.plain.finish(bench.plain.start(batch))) for batch in bench.batches(1)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_target(folder / "target", bench.pair.target_config, weights)
        job = {
            "target": str(folder / "target"),
            "prompts": [[int(token) for token in batch.prompts[0]] for batch in bench.batches(1)],
            "max_new_tokens": bench.workload.max_new_tokens,
            "concurrency": list(bench.concurrency),
            "repeats": bench.repeats,
        }
        (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
        _run(python, folder / "job.json", folder / "answer.json")
        answer = json.loads((folder / "answer.json").read_text(encoding="utf-8"))
    return {
        "program": f"transformers {answer['versions']['transformers']}, plain",
        "versions": answer["versions"],
        "threads": answer["threads"],
        "assisted": answer["assisted"],
        "speed": [_speed(one, plain) for one in answer["runs"]],
    }


def _speed(run: dict[str, Any], plain: list[Generation]) -> dict[str, Any]:
    """One concurrency: the same figures as ours, from the times at which each row of tokens was chosen."""
    repeats = []
    for groups in run["repeats"]:
        lines = []
        for group in groups:
            counts = np.arange(1, len(group["times"]) + 1)
            lines.append(Timeline(np.array(group["times"]), np.tile(counts[:, None], (1, run["concurrency"]))))
        repeats.append(figures(lines))
    same = all(np.array_equal(a, b.tokens[0]) for a, b in zip(run["tokens"], plain, strict=True))
    return {
        "concurrency": run["concurrency"],
        "figures": {name: as_json(spread) for name, spread in over_repeats(repeats).items()},
        "same_tokens": same,
    }


def _run(python: Path, job: Path, answer: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONWARNINGS")}
    done = subprocess.run(
        [python, SCRIPT, job, answer],
        env=environment | {"HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    if done.returncode:
        raise OSError(f"--peers: {SCRIPT.name} failed in {python}:\n{done.stderr[-2000:]}")
