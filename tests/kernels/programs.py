"""Every kernel at the sizes of the 27B pair: what the report lists and the machine code test compiles."""

import importlib
from pathlib import Path

from tests.kernels.machine_code import Program


def all_programs() -> tuple[Program, ...]:
    """The PROGRAMS of every `*_programs.py` beside this file."""
    names = sorted(path.stem for path in Path(__file__).parent.glob("*_programs.py"))
    modules = [importlib.import_module(f"tests.kernels.{name}") for name in names]
    return tuple(program for module in modules for program in module.PROGRAMS)
