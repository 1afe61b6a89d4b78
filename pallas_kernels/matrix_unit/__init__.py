"""Products of a warpgroup on the tensor cores, the same to a kernel whatever instruction makes them.

    wgmma.py   Hopper: asynchronous, operands in shared memory
    mma.py     everything newer: synchronous, operands read into registers

A kernel asks for the unit of its GPU once, outside its body.
"""

from pallas_kernels.device import architecture
from pallas_kernels.matrix_unit.mma import Mma
from pallas_kernels.matrix_unit.wgmma import Wgmma

type MatrixUnit = Wgmma | Mma


def matrix_unit() -> MatrixUnit:
    """The one of the GPU that a call is traced for."""
    return Wgmma() if architecture().products == "wgmma" else Mma()


__all__ = ["MatrixUnit", "Mma", "Wgmma", "matrix_unit"]
