"""`dspine serve` in a process of its own."""

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import httpx

PATIENCE = 600.0  # seconds for compilation on a busy machine


class ServerProcess:
    """A server that can be killed and started again on the same port."""

    def __init__(self, arguments: Sequence[str]):
        self.arguments = list(arguments)
        self.port = 0
        self.log: list[dict] = []
        self.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_) -> None:
        if self.process.poll() is None:
            self.kill()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Returns when requests are taken."""
        command = [sys.executable, "-m", "dspine_jax.cli", "serve", "--port", str(self.port), *self.arguments]
        self.process = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env=os.environ | {"JAX_PLATFORMS": "cpu"}
        )
        listening = threading.Event()
        self._reader = threading.Thread(target=self._read_log, args=(self.process, listening), daemon=True)
        self._reader.start()
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and self.process.poll() is None:
            if listening.wait(0.2) and self._is_ready():
                return
        raise RuntimeError(f"the server did not become ready; its last words: {self.log[-3:]}")

    def kill(self) -> None:
        """As a crash of the machine would."""
        self.process.kill()
        self._ended()

    def leave(self) -> int:
        """Asks it to drain and returns its exit status."""
        self.process.terminate()
        return self._ended()

    def resident_bytes(self) -> int:
        """Memory of the process that is in use now."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) * 1024

    def metrics(self) -> dict[str, float]:
        """All samples by name and labels."""
        text = httpx.get(f"{self.url}/metrics", timeout=60, trust_env=False).text
        samples = (line.rpartition(" ") for line in text.splitlines() if line and not line.startswith("#"))
        return {name: float(value) for name, _, value in samples}

    def _ended(self) -> int:
        status = self.process.wait(PATIENCE)
        self._reader.join()
        assert self.process.stderr is not None
        self.process.stderr.close()
        return status

    def _is_ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/ready", timeout=5, trust_env=False).status_code == 200
        except httpx.TransportError:
            return False

    def _read_log(self, process: subprocess.Popen, listening: threading.Event) -> None:
        assert process.stderr is not None
        for line in process.stderr:
            try:
                record = json.loads(line)
            except ValueError:
                record = {"message": line.rstrip()}
            self.log.append(record)
            if "url" in record:
                self.port = int(record["url"].rpartition(":")[2])
                listening.set()
