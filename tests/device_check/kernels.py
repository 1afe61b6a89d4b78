"""Every kernel on the device: its numbers against the float32 reference, its time against XLA's form and the floor."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from tests.device_check.inputs import arguments
from tests.device_check.timing import seconds_per_call, sets_to_exceed
from tests.kernels.machine_code import Program
from tests.kernels.programs import all_programs
from tests.tolerances import DEVICE_KERNELS

CACHE_BYTES = 50 * 2**20  # second level, H100 and H200
LARGEST_SETS = 20e9  # bytes of arguments held at once


def check(bandwidth: float, ops: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """One finding per program: errors, and microseconds of kernel, XLA form and floor. `ops` empty: all."""
    for program in all_programs():
        if ops and program.op not in ops:
            continue
        start = time.perf_counter()
        try:
            finding = agreement(program) | times(program, bandwidth)
        except Exception as error:  # one kernel that does not run must not hide the others
            finding = {"ok": False, "error": f"{type(error).__name__}: {error}"[:500]}
        yield {"op": program.op, "call": program.label, **finding, "took_s": time.perf_counter() - start}


def agreement(program: Program) -> dict[str, Any]:
    """Largest relative error (root mean square) over the outputs; for integer outputs the share that differs."""
    given = arguments(program, seed=0)
    with jax.default_matmul_precision("highest"):
        wanted = jax.jit(lambda *a: program.function(*a, implementation="reference"))(*given)
    got = jax.jit(lambda *a: program.function(*a, implementation="mosaic_gpu"))(*given)
    errors = [float(_error(a, b)) for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True)]
    tolerance = DEVICE_KERNELS[program.op]
    return {"errors": errors, "tolerance": tolerance, "ok": all(error <= tolerance for error in errors)}


def times(program: Program, bandwidth: float) -> dict[str, float]:
    """Microseconds per call."""
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(program.shapes))
    count = min(sets_to_exceed(CACHE_BYTES, program.bytes_moved), max(2, int(LARGEST_SETS // size)))
    found = {"floor_us": program.bytes_moved / bandwidth * 1e6}
    # The operations that donate give the state second.
    in_place = (lambda result: result[1]) if program.donate else None
    for name in ("mosaic_gpu", "xla"):
        sets = [arguments(program, seed) for seed in range(count)]

        def call(*given, name=name):
            return program.function(*given, implementation=name)

        found[f"{name}_us"] = seconds_per_call(call, sets, in_place=in_place) * 1e6
    return found


def _error(got: jax.Array, wanted: jax.Array) -> jax.Array:
    if jnp.issubdtype(wanted.dtype, jnp.integer):
        return jnp.mean(got != wanted)
    difference = got.astype(jnp.float32) - wanted.astype(jnp.float32)
    return jnp.linalg.norm(difference) / jnp.linalg.norm(wanted.astype(jnp.float32))
