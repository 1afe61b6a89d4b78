"""Scripts that need torch run in their own environment, since torch and jax do not share a process well."""

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHON = ROOT / ".venv-peers" / "bin" / "python"

MISSING = f"{PYTHON.parent.parent.name} does not exist; `make test` installs it"


def available() -> bool:
    """Whether the environment exists. One that exists and does not work is an error, not a reason to skip."""
    return PYTHON.exists()


def run(script: Path, *arguments: str | Path) -> None:
    """Runs a script there; a failure raises with what the script wrote to stderr."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONWARNINGS")}
    done = subprocess.run(
        [PYTHON, script, *arguments],
        cwd=ROOT,
        env=environment | {"HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{script.name} failed in {PYTHON}:\n{done.stderr[-4000:]}")
