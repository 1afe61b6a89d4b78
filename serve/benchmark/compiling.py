"""What compiling took, by the events that JAX reports about it."""

import contextlib
import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterator

from jax import monitoring

# Tracing to a jaxpr, lowering it, and XLA's part or the reading of a program kept on disk.
_PARTS = {
    "/jax/core/compile/jaxpr_trace_duration": "trace",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lower",
    "/jax/core/compile/backend_compile_duration": "compile",
}
_FROM_DISK = "/jax/compilation_cache/cache_hits"


@dataclasses.dataclass(frozen=True)
class CompileTime:
    """Seconds of each part, and how many programs XLA was asked for."""

    trace_seconds: float
    lower_seconds: float
    compile_seconds: float
    programs: int
    programs_from_disk: int  # of these; their compile time is the time of reading them

    @property
    def seconds(self) -> float:
        """All parts together."""
        return self.trace_seconds + self.lower_seconds + self.compile_seconds


@contextlib.contextmanager
def compile_time() -> Iterator[Callable[[], CompileTime]]:
    """Listens while the block runs; what it yields gives the sum so far, also after the block."""
    seconds: defaultdict[str, float] = defaultdict(float)
    counts: defaultdict[str, int] = defaultdict(int)

    def on_duration(event: str, duration_secs: float, **_) -> None:
        if event in _PARTS:
            seconds[_PARTS[event]] += duration_secs
            counts[_PARTS[event]] += 1

    def on_event(event: str, **_) -> None:
        counts[event] += event == _FROM_DISK

    monitoring.register_event_duration_secs_listener(on_duration)
    monitoring.register_event_listener(on_event)
    try:
        yield lambda: CompileTime(
            trace_seconds=seconds["trace"],
            lower_seconds=seconds["lower"],
            compile_seconds=seconds["compile"],
            programs=counts["compile"],
            programs_from_disk=counts[_FROM_DISK],
        )
    finally:
        monitoring.unregister_event_duration_listener(on_duration)
        monitoring.unregister_event_listener(on_event)
