"""The most memory that was in use, by whatever measure the device has."""

import dataclasses
import resource
import sys

import jax


@dataclasses.dataclass(frozen=True)
class Peak:
    """Since the process began: every part of the run is in it."""

    bytes: int
    measure: str


def peak() -> Peak:
    """Of the first device's allocator, or of the whole process where that keeps no count."""
    found = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
    if found:
        return Peak(int(found), "arrays and temporaries on the device")
    unit = 1 if sys.platform == "darwin" else 1024
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return Peak(most * unit, "resident memory of the process, compiler and libraries included")
