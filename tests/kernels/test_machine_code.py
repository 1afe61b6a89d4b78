"""Every kernel at 27B sizes becomes machine code that a GPU can run well, and the committed table says so."""

import functools

import pytest

from dspine_jax.deviceless import abstract_gpu
from pallas_kernels.device import architecture
from tests.kernels import report
from tests.kernels.machine_code import MachineCode, Program, compile_program
from tests.kernels.machine_code_of import machine_code_of
from tests.kernels.programs import GPUS, programs_of

pytestmark = pytest.mark.kernels
CALLS = [(gpu, program) for gpu in GPUS for program in programs_of(gpu)]
LOWER_SECONDS = 10
REGISTER_SLACK = 8
AGAIN = "run `make kernels-report` and commit it"


@functools.cache
def compiled(gpu: str, program: Program) -> MachineCode:
    return compile_program(program, gpu) if gpu == "h200" else elsewhere(gpu)[str(program)]


elsewhere = functools.cache(machine_code_of)


@pytest.mark.parametrize(("gpu", "program"), CALLS, ids=str)
def test_machine_code(gpu, program):
    code = compiled(gpu, program)
    with abstract_gpu(gpu).current():
        most = architecture().shared_memory_bytes
    assert code.kernels, "no Mosaic kernel in the program"
    assert not code.warnings
    for kernel in code.kernels:
        assert kernel.spill_bytes == 0
        assert kernel.shared_memory_bytes <= most
    assert code.lower_seconds < LOWER_SECONDS
    assert_committed(report.rows(gpu, program, code))


def assert_committed(rows: list[tuple[str, ...]]) -> None:
    """The rows stand in the committed table; the search for register layouts is not quite deterministic."""
    committed = {cells[:4]: cells for cells in committed_rows()}
    for cells in rows:
        assert cells[:4] in committed, f"{cells} is not in the committed table: {AGAIN}"
        found = committed[cells[:4]]
        same = found[5:] == cells[5:] and abs(int(found[4]) - int(cells[4])) <= REGISTER_SLACK
        assert same, f"{cells} is {found} in the committed table: {AGAIN}"


def committed_rows() -> list[tuple[str, ...]]:
    """The cells of each row of the table."""
    lines = [line for line in report.PATH.read_text().splitlines() if line.startswith("| ")][2:]
    return [tuple(cell.strip() for cell in line.split("|")[1:-1]) for line in lines]


def test_the_committed_table_has_no_other_rows():
    assert {cells[:3] for cells in committed_rows()} == {(gpu, program.op, program.label) for gpu, program in CALLS}
