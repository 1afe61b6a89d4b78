"""Progress of a training run: one JSON line per report, on standard output and in a file."""

import json
import time
from pathlib import Path


class TrainingLog:
    """Appends lines to `path`; every line carries the step and the seconds since the start."""

    def __init__(self, path: Path):
        self.path = path
        self.started = time.monotonic()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("", encoding="utf-8")

    def report(self, step: int, **values: float) -> None:
        """Writes one line."""
        line = {"step": step, "seconds": round(time.monotonic() - self.started, 1)}
        line |= {name: round(float(value), 5) for name, value in values.items()}
        text = json.dumps(line)
        print(text, flush=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(text + "\n")
