"""Runs Mosaic GPU kernels on the CPU, in JAX's interpreter, with its race detector.

Shared memory and outputs start as NaN there. What it cannot see: wgmma runs synchronously and takes no part in race
detection (`planted.shadow_reads` closes most of that hole), and products are made in full float32.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.experimental.pallas import mosaic_gpu as plgpu

from tests import quick_jit
from tests.kernels import jax_private

HOPPER = "NVIDIA H100 (interpreted)"
BLACKWELL = "NVIDIA B200 (interpreted)"
WORKSTATION = "NVIDIA RTX PRO 6000 Blackwell (interpreted)"
_kind = contextvars.ContextVar("kind", default=HOPPER)


def interpret(function: Callable, *args: Any, cores: int = 8) -> tuple[Any, bool]:
    """function(*args) as a GPU with `cores` streaming multiprocessors would run it, and whether it raced."""
    with interpreting(cores):
        # A fresh function: a trace made outside must not be found again.
        out = jax.block_until_ready(quick_jit.jit(lambda *a: function(*a))(*args))
        return out, jax_private.races_found()


@contextlib.contextmanager
def gpu(kind: str) -> Iterator[None]:
    """What runs inside is interpreted as this GPU would run it."""
    token = _kind.set(kind)
    try:
        yield
    finally:
        _kind.reset(token)


@contextlib.contextmanager
def interpreting(cores: int = 8) -> Iterator[None]:
    """Every call traced inside is made for an interpreted GPU."""
    jax_private.interpret_mma()
    device = jax.sharding.AbstractDevice(device_kind=_kind.get(), platform="gpu", num_cores=cores)
    mesh = jax.sharding.AbstractMesh((), (), abstract_device=device)
    jax_private.reset_interpreter()
    try:
        with (
            jax.sharding.use_abstract_mesh(mesh),
            plgpu.force_gpu_interpret_mode(plgpu.InterpretGPUParams(detect_races=True)),
        ):
            yield
    finally:
        jax_private.reset_interpreter()
