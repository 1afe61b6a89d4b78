"""A progress bar in bytes on standard error; silent unless that is a terminal."""

import sys
import time
from types import TracebackType
from typing import Self, TextIO

_WIDTH = 30
_INTERVAL = 0.1


class Progress:
    """Context manager; `advance` adds bytes done and names what is at work."""

    def __init__(self, total: int, stream: TextIO | None = None):
        self._total = max(total, 1)
        self._done = 0
        self._stream = sys.stderr if stream is None else stream
        self._shown = self._stream.isatty()
        self._start = time.monotonic()
        self._last = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown:
            self._stream.write("\n")

    def advance(self, nbytes: int, name: str) -> None:
        self._done += nbytes
        now = time.monotonic()
        if not self._shown or (now - self._last < _INTERVAL and self._done < self._total):
            return
        self._last = now
        fraction = min(self._done / self._total, 1.0)
        bar = "#" * round(fraction * _WIDTH)
        rate = self._done / max(now - self._start, 1e-9) / 1e6
        self._stream.write(
            f"\r[{bar:<{_WIDTH}}] {fraction:4.0%}  {self._done / 1e9:.2f} of {self._total / 1e9:.2f} GB  "
            f"{rate:.0f} MB/s  {name[:40]:<40}"
        )
        self._stream.flush()
