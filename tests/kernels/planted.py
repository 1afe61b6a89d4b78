"""Plants bugs in a kernel, and reads where the interpreter does not look, without a flag in the kernel.

A kernel module calls `plgpu.name(...)`; for the time of a `with` block its `plgpu` is a stand-in with other functions.
"""

import contextlib
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.matrix_unit import wgmma


@contextlib.contextmanager
def planted(*modules: ModuleType, **functions: Callable) -> Iterator[None]:
    """Each module's `plgpu` with some functions replaced. Raises if a name does not exist or a module lacks `plgpu`."""
    for name in functions:
        getattr(plgpu, name)
    stand_in = SimpleNamespace(**{name: getattr(plgpu, name) for name in dir(plgpu)} | functions)
    originals: list[Any] = [vars(module)["plgpu"] for module in modules]
    for module in modules:
        vars(module)["plgpu"] = stand_in
    try:
        yield
    finally:
        for module, original in zip(modules, originals, strict=True):
            vars(module)["plgpu"] = original


def nothing(*_args: Any, **_kwargs: Any) -> None:
    """Stands for a synchronisation that was forgotten."""


@contextlib.contextmanager
def shadow_reads(*modules: ModuleType, **functions: Callable) -> Iterator[None]:
    """Reads the shared memory operands of every wgmma just before the modules' next arrival at a barrier.

    The hardware may read them until then, so a buffer that is released or overwritten earlier shows as a race. The
    fence is needed because these reads go through the generic proxy. `functions` plants further bugs.
    """
    operands: list[Any] = []
    arrive = functions.pop("barrier_arrive", plgpu.barrier_arrive)

    def multiply(acc, a, b):
        operands.extend((a, b))
        return plgpu.wgmma(acc, a, b)

    def barrier_arrive(*args, **kwargs):
        if operands:
            for ref in operands:
                _ = ref[...]
            operands.clear()
            plgpu.commit_smem()
        return arrive(*args, **kwargs)

    with planted(wgmma, wgmma=multiply), planted(*modules, barrier_arrive=barrier_arrive, **functions):
        yield
