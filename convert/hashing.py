"""SHA-256 of the source files, taken in the background while the conversion runs."""

import hashlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_BLOCK = 4 * 2**20

Descriptions = list[dict[str, Any]]


@contextmanager
def hashing(paths: Mapping[str, Sequence[Path]]) -> Iterator[dict[str, Future[Descriptions]]]:
    """For each group of files, a future list of {"name", "size", "sha256"}; the hash is the one that model
    hubs show.

    Leaving the block by an error stops the work.
    """
    stop = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        try:
            yield {group: pool.submit(_describe, files, stop) for group, files in paths.items()}
        except BaseException:
            stop.set()
            raise


def _describe(paths: Sequence[Path], stop: threading.Event) -> Descriptions:
    return [{"name": path.name, "size": path.stat().st_size, "sha256": _sha256(path, stop)} for path in paths]


def _sha256(path: Path, stop: threading.Event) -> str:
    digest = hashlib.sha256()
    buffer = bytearray(_BLOCK)
    with open(path, "rb", buffering=0) as file:
        while not stop.is_set() and (count := file.readinto(buffer)):
            digest.update(memoryview(buffer)[:count])
    return digest.hexdigest()
