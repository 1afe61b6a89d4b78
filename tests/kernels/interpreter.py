"""Runs Mosaic GPU kernels on the CPU, in JAX's interpreter, with its race detector.

Shared memory and outputs start as NaN there. What it cannot see: wgmma runs synchronously and takes no part in race
detection (`planted.shadow_reads` closes most of that hole), and it multiplies in full float32.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.experimental.pallas import mosaic_gpu as plgpu

from tests import quick_jit
from tests.kernels import jax_private

INTERPRETED = "NVIDIA H100 (interpreted)"


def interpret(function: Callable, *args: Any, cores: int = 8) -> tuple[Any, bool]:
    """function(*args) as a GPU with `cores` streaming multiprocessors would run it, and whether it raced."""
    with interpreting(cores):
        # A fresh function: a trace made outside must not be found again.
        out = jax.block_until_ready(quick_jit.jit(lambda *a: function(*a))(*args))
        return out, jax_private.races_found()


@contextlib.contextmanager
def interpreting(cores: int = 8) -> Iterator[None]:
    """Every call traced inside is made for an interpreted Hopper GPU."""
    device = jax.sharding.AbstractDevice(device_kind=INTERPRETED, platform="gpu", num_cores=cores)
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
