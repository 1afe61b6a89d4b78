"""Compiles the calls of one GPU in a process of its own: Mosaic keeps the first GPU that a process compiles for.

python -m tests.kernels.machine_code_of b200
"""

import dataclasses
import json
import subprocess
import sys

from tests.kernels.machine_code import Kernel, MachineCode, compile_program
from tests.kernels.programs import programs_of


def machine_code_of(gpu: str) -> dict[str, MachineCode]:
    """By the name of each program, without its text."""
    command = [sys.executable, "-m", "tests.kernels.machine_code_of", gpu]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise RuntimeError(f"the kernels do not compile for {gpu}:\n{done.stderr[-4000:]}")
    codes = {}
    for name, code in json.loads(done.stdout.splitlines()[-1]).items():
        kernels = tuple(Kernel(**kernel) for kernel in code.pop("kernels"))
        codes[name] = MachineCode(kernels=kernels, **code | {"warnings": tuple(code["warnings"])})
    return codes


if __name__ == "__main__":
    found = {}
    for program in programs_of(sys.argv[1]):
        found[str(program)] = dataclasses.asdict(compile_program(program, sys.argv[1])) | {"hlo": ""}
    print(json.dumps(found))
