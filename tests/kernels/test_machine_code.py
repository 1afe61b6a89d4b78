"""Every kernel at 27B sizes becomes sm_90a machine code that a GPU can run well, and the committed table says so."""

import functools

import pytest

from pallas_kernels.shared_memory import SHARED_MEMORY_BYTES
from tests.kernels import report
from tests.kernels.machine_code import MachineCode, Program, compile_program
from tests.kernels.programs import all_programs

pytestmark = pytest.mark.kernels
PROGRAMS = all_programs()
LOWER_SECONDS = 10
REGISTER_SLACK = 8
AGAIN = "run `make kernels-report` and commit it"


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
        assert kernel.shared_memory_bytes <= SHARED_MEMORY_BYTES
    assert code.lower_seconds < LOWER_SECONDS
    assert_committed(report.rows(program, code))


def assert_committed(rows: list[tuple[str, ...]]) -> None:
    """The rows stand in the committed table; the search for register layouts is not quite deterministic."""
    committed = {cells[:3]: cells for cells in committed_rows()}
    for cells in rows:
        assert cells[:3] in committed, f"{cells} is not in the committed table: {AGAIN}"
        found = committed[cells[:3]]
        same = found[4:] == cells[4:] and abs(int(found[3]) - int(cells[3])) <= REGISTER_SLACK
        assert same, f"{cells} is {found} in the committed table: {AGAIN}"


def committed_rows() -> list[tuple[str, ...]]:
    """The cells of each row of the table."""
    lines = [line for line in report.PATH.read_text().splitlines() if line.startswith("| ")][2:]
    return [tuple(cell.strip() for cell in line.split("|")[1:-1]) for line in lines]


def test_the_committed_table_has_no_other_rows():
    assert {cells[:2] for cells in committed_rows()} == {(program.op, program.label) for program in PROGRAMS}
