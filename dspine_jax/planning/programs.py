"""Compiles the programs that a pair runs for a GPU that is not here, and asks XLA what they need."""

import dataclasses
import re
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp

from dspine_jax.deviceless import AbstractGPU
from dspine_jax.loop import compiled
from dspine_jax.loop.state import LoopState
from dspine_jax.planning.pair import AbstractPair, slots
from pallas_kernels.device import gpu_obstacle

PROGRAMS = ("prefill_chunk", "cycle", "loop")


@dataclasses.dataclass(frozen=True)
class ProgramFacts:
    """What one compiled program needs beside its arguments."""

    name: str
    temporary_bytes: int
    new_output_bytes: int  # results that take no donated argument's place; 0 when every cache is updated in place
    argument_bytes: int  # weights that the program does not use are no arguments of it
    mosaic_kernels: int  # kernels of this project; the rest is XLA's
    lower_seconds: float
    compile_seconds: float  # while the other programs are compiled too

    @property
    def extra_bytes(self) -> int:
        """Bytes needed at its peak beyond weights and state."""
        return self.temporary_bytes + self.new_output_bytes


def compile_programs(
    pair: AbstractPair,
    state: LoopState,
    gpu: AbstractGPU,
    *,
    chunk: int,
    names: Sequence[str] = PROGRAMS,
) -> tuple[ProgramFacts, ...]:
    """The facts of each named program for this state; prompts are read in chunks of `chunk` tokens.

    Tracing holds the interpreter, compiling does not: each program compiles in its own thread while the next is
    traced. Raises jax.errors.JaxRuntimeError where XLA or ptxas refuse a program.
    """
    pending = []
    with gpu.current(), ThreadPoolExecutor(max_workers=len(names)) as pool:
        for name in names:
            start = time.perf_counter()
            lowered = lower(name, pair, state, gpu, chunk=chunk)
            seconds = time.perf_counter() - start
            pending.append(pool.submit(_compile, name, lowered, seconds))
        return tuple(job.result() for job in pending)


def lower(name: str, pair: AbstractPair, state: LoopState, gpu: AbstractGPU, *, chunk: int) -> jax.stages.Lowered:
    """The traced program, placed on the GPU; call it inside `gpu.current()`."""
    weights, state = gpu.place((pair.weights, state))
    match name:
        case "prefill_chunk":
            batch = slots(state)
            ids = jax.ShapeDtypeStruct((batch, chunk), jnp.int32)
            length = jax.ShapeDtypeStruct((batch,), jnp.int32)
            return compiled.prefill_chunk.lower(pair.plan, weights, state, *gpu.place((ids, length)))
        case "cycle":
            return compiled.run_cycle.lower(pair.plan, weights, state)
        case "loop":
            return compiled.run.lower(pair.plan, weights, state)
    raise ValueError(f"the program is {name!r}, wanted one of {PROGRAMS}")


def kernel_obstacle(gpu: AbstractGPU) -> str | None:
    """Why this project's GPU kernels cannot run there, so that XLA's forms are compiled; None if they can."""
    with gpu.current():
        return gpu_obstacle()


def _compile(name: str, lowered: jax.stages.Lowered, lower_seconds: float) -> ProgramFacts:
    start = time.perf_counter()
    program = lowered.compile()
    seconds = time.perf_counter() - start
    memory, text = program.memory_analysis(), program.as_text()
    if memory is None or text is None:
        raise RuntimeError(f"XLA tells nothing of the compiled {name}: this jax version is not supported")
    return ProgramFacts(
        name=name,
        temporary_bytes=memory.temp_size_in_bytes,
        new_output_bytes=memory.output_size_in_bytes - memory.alias_size_in_bytes,
        argument_bytes=memory.argument_size_in_bytes,
        mosaic_kernels=len(re.findall(r'custom_call_target="mosaic_gpu', text)),
        lower_seconds=lower_seconds,
        compile_seconds=seconds,
    )
