"""Compiles one kernel call to machine code for a GPU that is not here, and reads what the assembler says of it."""

import contextlib
import dataclasses
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax

from dspine_jax.deviceless import abstract_gpu
from tests.kernels.ordinary_core import measured

# C7504: the register limits of warpgroups were dropped. C7514: matrix products were serialised.
BAD_WARNINGS = ("C7504", "C7514")


@dataclasses.dataclass(frozen=True)
class Program:
    """A call at a size that matters."""

    op: str
    label: str  # such as "16 rows"
    function: Callable
    shapes: tuple[Any, ...]  # positional arguments: pytrees of jax.ShapeDtypeStruct
    bytes_moved: int  # through device memory if every operand is read once and every result written once
    donate: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.op}-{self.label}".replace(" ", "-")


@dataclasses.dataclass(frozen=True)
class Kernel:
    """One Mosaic kernel inside a program."""

    name: str
    registers: int  # per thread
    spill_bytes: int
    shared_memory_bytes: int  # per block


@dataclasses.dataclass(frozen=True)
class MachineCode:
    """A compiled program."""

    kernels: tuple[Kernel, ...]
    warnings: tuple[str, ...]  # of BAD_WARNINGS
    lower_seconds: float  # of an ordinary core
    hlo: str  # optimised
    alias_bytes: int
    temporary_bytes: int


def compile_program(program: Program, gpu: str = "h200") -> MachineCode:
    """Raises where Mosaic, XLA or ptxas refuse the program."""
    device = abstract_gpu(gpu)
    with tempfile.TemporaryDirectory() as folder, _dumping(folder), device.current():
        shapes = device.place(program.shapes)
        # A fresh function: only a kernel that is compiled anew leaves its report.
        function = jax.jit(lambda *a: program.function(*a), donate_argnums=program.donate)
        with measured() as lowering:
            lowered = function.lower(*shapes)
        compiled = lowered.compile()
        reports = sorted(Path(folder).glob("*.ptxas"))
        text = "\n".join(path.read_text() for path in reports)
        kernels = tuple(_kernel(path) for path in reports)
    hlo, memory = compiled.as_text(), compiled.memory_analysis()
    assert hlo is not None and memory is not None
    return MachineCode(
        kernels=kernels,
        warnings=tuple(code for code in BAD_WARNINGS if code in text),
        lower_seconds=lowering.seconds,
        hlo=hlo,
        alias_bytes=memory.alias_size_in_bytes,
        temporary_bytes=memory.temp_size_in_bytes,
    )


def _kernel(report: Path) -> Kernel:
    text = report.read_text()
    resources = report.with_name(report.name.removesuffix(".ptxas") + ".resources.txt").read_text()
    return Kernel(
        name=re.sub(r"_\d+$", "", report.name.removesuffix(".ptxas")),  # without the count of kernels so far
        registers=_number(r"Used (\d+) registers", text),
        spill_bytes=_number(r"(\d+) bytes spill stores", text) + _number(r"(\d+) bytes spill loads", text),
        shared_memory_bytes=_number(r"smem_scratch_bytes=(\d+)", resources),
    )


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    if not found:
        raise ValueError(f"no {pattern!r} in the assembler's report:\n{text[:2000]}")
    return int(found.group(1))


@contextlib.contextmanager
def _dumping(folder: str) -> Iterator[None]:
    before = os.environ.get("MOSAIC_GPU_DUMP_TO")
    os.environ["MOSAIC_GPU_DUMP_TO"] = folder
    try:
        yield
    finally:
        del os.environ["MOSAIC_GPU_DUMP_TO"]
        if before is not None:
            os.environ["MOSAIC_GPU_DUMP_TO"] = before
