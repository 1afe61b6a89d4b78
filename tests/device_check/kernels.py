"""Every kernel on the device: its numbers against the float32 reference, its time against XLA's form and the floor."""

import dataclasses
import functools
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.implementation import Implementation
from tests.device_check.inputs import arguments
from tests.device_check.lookup import lookup
from tests.device_check.timing import seconds_per_call, sets_to_exceed
from tests.kernels.machine_code import Program
from tests.kernels.programs import all_programs
from tests.tolerances import DEVICE_KERNELS

CACHE_BYTES = 126 * 2**20  # second level, the largest of the GPUs it knows (B200)
LARGEST_SETS = 20e9  # bytes of arguments held at once
TWINS = ("paged_block_attention", "ring_block_attention")  # run by the interpreter in another form


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
    if program.op in TWINS:
        errors.append(float(twin_difference(program, given, got)))
    return {"errors": errors, "tolerance": tolerance, "ok": all(error <= tolerance for error in errors)}


def twin_difference(program: Program, given: tuple, got: jax.Array) -> jax.Array:
    """Relative difference between what the kernel gives and what the form that the interpreter can run gives."""
    _, _, heuristic = lookup(program)
    twin = functools.partial(program.function, tiles=dataclasses.replace(heuristic, accumulate="fresh"))
    return _error(jax.jit(lambda *a: twin(*a, implementation="mosaic_gpu"))(*given), got)


def times(program: Program, bandwidth: float) -> dict[str, float]:
    """Microseconds per call."""
    floor = {"floor_us": program.bytes_moved / bandwidth * 1e6}
    return floor | {f"{name}_us": seconds(program, name) * 1e6 for name in ("mosaic_gpu", "xla")}


def seconds(program: Program, implementation: Implementation) -> float:
    """Time of one call that finds the device's cache cold."""
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(program.shapes))
    count = min(sets_to_exceed(CACHE_BYTES, program.bytes_moved), max(2, int(LARGEST_SETS // size)))
    sets = [arguments(program, seed) for seed in range(count)]
    # The operations that donate give the state second.
    in_place = (lambda result: result[1]) if program.donate else None
    call = functools.partial(program.function, implementation=implementation)
    return seconds_per_call(call, sets, in_place=in_place)


def _error(got: jax.Array, wanted: jax.Array) -> jax.Array:
    if jnp.issubdtype(wanted.dtype, jnp.integer):
        return jnp.mean(got != wanted)
    difference = got.astype(jnp.float32) - wanted.astype(jnp.float32)
    return jnp.linalg.norm(difference) / jnp.linalg.norm(wanted.astype(jnp.float32))
