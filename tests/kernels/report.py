"""`make kernels-report`: what the assembler says of every kernel at 27B sizes, as a table in docs."""

from pathlib import Path

from tests.kernels.machine_code import MachineCode, Program, compile_program
from tests.kernels.programs import all_programs

PATH = Path(__file__).resolve().parents[2] / "docs" / "kernels-report.md"
MEMORY_BANDWIDTH = 4.8e12  # bytes per second, NVIDIA H200
COLUMNS = ("op", "call", "kernel", "registers", "spills", "shared memory (KiB)", "bytes moved (MB)", "floor (us)")
INTRODUCTION = """# Kernels as compiled

Written by `make kernels-report` on a machine without a GPU: every Mosaic kernel at the sizes of the 27B pair, compiled
to sm_90a machine code. Registers are per thread, spills are bytes; bytes moved counts every operand and result of the
whole call once, and the floor is that at 4.8 TB/s (NVIDIA H200). The floor is arithmetic, not a measurement.
"""


def rows(program: Program, code: MachineCode) -> list[tuple[str, ...]]:
    """One row of the table per kernel of the program; the call's bytes stand in its first row."""
    moved = (f"{program.bytes_moved / 1e6:.1f}", f"{program.bytes_moved / MEMORY_BANDWIDTH * 1e6:.1f}")
    return [
        (
            program.op,
            program.label,
            kernel.name,
            str(kernel.registers),
            str(kernel.spill_bytes),
            f"{kernel.shared_memory_bytes / 1024:.0f}",
            *(moved if index == 0 else ("", "")),
        )
        for index, kernel in enumerate(code.kernels)
    ]


def table(lines: list[tuple[str, ...]]) -> str:
    """A Markdown table."""
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (COLUMNS, ("---",) * len(COLUMNS), *lines)) + "\n"


def main() -> None:
    """Compiles everything and writes the table."""
    lines = []
    for program in all_programs():
        lines += rows(program, compile_program(program))
        print(program, flush=True)
    PATH.write_text(INTRODUCTION + "\n" + table(lines))
    print(f"\n{table(lines)}\nwritten to {PATH}")


if __name__ == "__main__":
    main()
