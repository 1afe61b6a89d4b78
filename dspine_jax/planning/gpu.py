"""The facts of a GPU that a plan needs, read from the description that XLA compiles for."""

import dataclasses
import re
from typing import Self

from dspine_jax.deviceless import description

# Dense BF16 operations of the tensor cores per clock and multiprocessor, by major compute capability (data sheets of
# H100 and B200). An unlisted GPU gets no arithmetic floor.
TENSOR_OPERATIONS = {9: 4096, 10: 8192}

# What a process needs beside XLA's arrays: the CUDA context with its libraries and the loaded machine code, and what
# an allocator that cannot move arrays loses to gaps. An assumption, printed with every plan.
CONTEXT_BYTES = 2**30
FRAGMENTATION = 0.02

DEFAULT_SHARE = 0.75  # of the memory, which a JAX process takes if XLA_CLIENT_MEM_FRACTION says nothing else


@dataclasses.dataclass(frozen=True)
class GPU:
    """One GPU. `name` is what was asked for, `model` what the vendor calls it."""

    name: str
    model: str
    memory_bytes: int
    bandwidth: float  # bytes per second
    peak: float | None  # dense BF16 operations per second, or None where unknown

    @classmethod
    def read(cls, name: str) -> Self:
        """The GPU of that name, or of a description file. Raises ValueError for an unknown name or a missing fact."""
        text = "\n".join(line for line in description(name).splitlines() if not line.lstrip().startswith("#"))

        def fact(key: str, form: str) -> str:
            found = re.search(rf"\b{key}:\s*{form}", text)
            if not found:
                raise ValueError(f"the GPU description {name!r} has no {key}; wanted a text of XLA's GpuTargetConfig")
            return found.group(1)

        number = r"([0-9.e+]+)"
        capability = re.search(r"cuda_compute_capability\s*:?\s*\{[^}]*?\bmajor:\s*(\d+)", text)
        operations = TENSOR_OPERATIONS.get(int(capability.group(1))) if capability else None
        clocks = float(fact("core_count", number)) * float(fact("clock_rate_ghz", number)) * 1e9
        return cls(
            name=name,
            model=fact("name", r'"([^"]+)"'),
            memory_bytes=int(fact("device_memory_size", number)),
            bandwidth=float(fact("memory_bandwidth", number)),
            peak=operations * clocks if operations else None,
        )

    @property
    def reserve_bytes(self) -> int:
        """What no array of a program may use."""
        return CONTEXT_BYTES + int(self.memory_bytes * FRAGMENTATION)
