"""How many programs one thread has compiled: after the warm-up, none should be."""

import contextlib
import threading
from collections.abc import Iterator

import jax.monitoring

COMPILED = "/jax/core/compile/backend_compile_duration"


class Compilations:
    """A count of the programs that the thread inside `watch` compiles."""

    def __init__(self):
        self.count = 0

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """Counts the calling thread's."""
        thread = threading.get_ident()

        def listen(event: str, duration_secs: float, **_: object) -> None:
            if event == COMPILED and threading.get_ident() == thread:
                self.count += 1

        jax.monitoring.register_event_duration_secs_listener(listen)
        try:
            yield
        finally:
            jax.monitoring.unregister_event_duration_listener(listen)
