"""How much one rendering of a template may do."""

import dataclasses
import threading
import time

STEP_LIMIT = 1_000_000
SECONDS_LIMIT = 10.0
OUTPUT_LIMIT = 16 * 2**20


class BudgetError(Exception):
    """The template did more than it may."""


@dataclasses.dataclass(frozen=True)
class Limits:
    """Passes through loops and macros, seconds, and characters written or made by one product."""

    steps: int = STEP_LIMIT
    seconds: float = SECONDS_LIMIT
    characters: int = OUTPUT_LIMIT


class Budget(threading.local):
    """What is left to the rendering that runs in this thread."""

    def __init__(self, limits: Limits):
        self.limits = limits
        self.begin()

    def begin(self) -> None:
        """A rendering begins."""
        self._steps = 0
        self._end = time.monotonic() + self.limits.seconds

    def step(self) -> str:
        """One pass of a loop or of a macro begins. Writes nothing."""
        self._steps += 1
        if self._steps > self.limits.steps:
            raise BudgetError(f"more than {self.limits.steps} passes through its loops and macros")
        if time.monotonic() > self._end:
            raise BudgetError(f"not done after {self.limits.seconds:g} seconds")
        return ""

    def check_size(self, characters: int) -> None:
        """The text that has been written, or that one operation would make."""
        if characters > self.limits.characters:
            raise BudgetError(f"a text of more than {self.limits.characters} characters")
