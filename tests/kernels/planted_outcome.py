"""What a planted bug comes to, and copies that take as long as they may."""

import contextlib
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
from jax.experimental.pallas import mosaic_gpu as plgpu

from tests.kernels.interpreter import interpret
from tests.kernels.planted import planted
from tests.tolerances import relative_rms


def outcome(function: Callable, arguments: tuple[Any, ...], want: np.ndarray, bound: float) -> str:
    """ "right", "wrong numbers", "race" or "error" of one interpreted run."""
    try:
        got, races = interpret(function, *arguments)
    except Exception:  # the interpreter's own complaints have no common type
        return "error"
    if races:
        return "race"
    return "right" if relative_rms(got, want) <= bound else "wrong numbers"


@contextlib.contextmanager
def late_copies(*modules: ModuleType, wait: bool) -> Iterator[None]:
    """Copies into shared memory that a single barrier guards happen when it is waited for, and no earlier.

    The interpreter makes a copy at once, so that a forgotten wait would go unseen. `wait=False` forgets it. Copies
    guarded by one of an array of barriers are left alone.
    """
    late: list[Callable[[], None]] = []

    def copy(source, target, barrier):
        if hasattr(barrier, "transforms"):  # a view of an array of barriers
            plgpu.copy_gmem_to_smem(source, target, barrier)
        else:
            late.append(lambda: plgpu.copy_gmem_to_smem(source, target, barrier))

    def barrier_wait(barrier):
        if wait:
            while late:
                late.pop()()
            plgpu.barrier_wait(barrier)

    with planted(*modules, copy_gmem_to_smem=copy, barrier_wait=barrier_wait):
        yield
