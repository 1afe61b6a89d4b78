"""Every kernel at the sizes of the 27B pair: what the report lists and the machine code test compiles, by GPU."""

import importlib
from pathlib import Path

from tests.kernels.machine_code import Program


def all_programs() -> tuple[Program, ...]:
    """The PROGRAMS of every `*_programs.py` beside this file."""
    names = sorted(path.stem for path in Path(__file__).parent.glob("*_programs.py"))
    modules = [importlib.import_module(f"tests.kernels.{name}") for name in names]
    return tuple(program for module in modules for program in module.PROGRAMS)


GPUS = ("h200", "b200", "rtx-pro-6000")
FEWEST, MOST = "16 rows", ("128 rows", "8 x 512 rows")


def programs_of(gpu: str) -> tuple[Program, ...]:
    """All of them for Hopper; for other GPUs the largest call, or the smallest where the prefill does not fit."""
    programs = all_programs()
    if gpu == "b200":
        # Few rows of a projection are products of another shape.
        few = [program for program in programs if program.op.startswith("project") and program.label.endswith(FEWEST)]
        return (*few, *[program for program in programs if program.label.endswith(MOST)])
    if gpu == "rtx-pro-6000":
        return tuple(program for program in programs if program.label.endswith(FEWEST))
    return programs
