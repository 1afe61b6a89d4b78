"""`make kernels-report`: what the assembler says of every kernel at 27B sizes, as a table in docs."""

from pathlib import Path

from dspine_jax.planning.gpu import GPU
from tests.kernels.machine_code import MachineCode, Program
from tests.kernels.machine_code_of import machine_code_of
from tests.kernels.programs import GPUS, programs_of

PATH = Path(__file__).resolve().parents[2] / "docs" / "kernels-report.md"
COLUMNS = (
    "GPU",
    "op",
    "call",
    "kernel",
    "registers",
    "spills",
    "shared memory (KiB)",
    "bytes moved (MB)",
    "floor (us)",
)
INTRODUCTION = """# Kernels as compiled

Written by `make kernels-report` on a machine without a GPU: every Mosaic kernel at the sizes of the 27B pair, compiled
to machine code for sm_90a (h200), sm_100a (b200) and sm_120a (rtx-pro-6000). Registers are per thread, spills are
bytes; bytes moved counts every operand and result of the whole call once, and the floor is that over the GPU's memory
bandwidth. The floor is arithmetic, not a measurement.
"""


def rows(gpu: str, program: Program, code: MachineCode) -> list[tuple[str, ...]]:
    """One row of the table per kernel of the program, however often launched; the first row has the call's bytes."""
    moved = (f"{program.bytes_moved / 1e6:.1f}", f"{program.bytes_moved / GPU.read(gpu).bandwidth * 1e6:.1f}")
    return [
        (
            gpu,
            program.op,
            program.label,
            kernel.name,
            str(kernel.registers),
            str(kernel.spill_bytes),
            f"{kernel.shared_memory_bytes / 1024:.0f}",
            *(moved if index == 0 else ("", "")),
        )
        for index, kernel in enumerate({kernel.name: kernel for kernel in code.kernels}.values())
    ]


def table(lines: list[tuple[str, ...]]) -> str:
    """A Markdown table."""
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (COLUMNS, ("---",) * len(COLUMNS), *lines)) + "\n"


def main() -> None:
    """Compiles everything and writes the table."""
    lines = []
    for gpu in GPUS:
        codes = machine_code_of(gpu)
        for program in programs_of(gpu):
            lines += rows(gpu, program, codes[str(program)])
    PATH.write_text(INTRODUCTION + "\n" + table(lines))
    print(f"\n{table(lines)}\nwritten to {PATH}")


if __name__ == "__main__":
    main()
