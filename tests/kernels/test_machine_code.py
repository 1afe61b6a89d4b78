"""Every kernel at 27B sizes becomes sm_90a machine code that a GPU can run well, and the committed table says so."""

import functools

import pytest

from tests.kernels import report
from tests.kernels.machine_code import SHARED_MEMORY_LIMIT, MachineCode, Program, compile_program
from tests.kernels.programs import all_programs

pytestmark = pytest.mark.kernels
PROGRAMS = all_programs()
LOWER_SECONDS = 10


@functools.cache
def compiled(program: Program) -> MachineCode:
    return compile_program(program)


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_machine_code(program):
    code = compiled(program)
    assert code.kernels, "no Mosaic kernel in the program"
    assert not code.warnings
    for kernel in code.kernels:
        assert kernel.spill_bytes == 0
        assert kernel.shared_memory_bytes <= SHARED_MEMORY_LIMIT
    assert code.lower_seconds < LOWER_SECONDS
    committed = report.PATH.read_text()
    for cells in report.rows(program, code):
        assert report.table([cells]).splitlines()[-1] in committed, "run `make kernels-report` and commit its table"


def test_the_committed_table_has_no_other_rows():
    lines = [line for line in report.PATH.read_text().splitlines() if line.startswith("| ")][2:]
    calls = {tuple(cell.strip() for cell in line.split("|")[1:3]) for line in lines}
    assert calls == {(program.op, program.label) for program in PROGRAMS}
