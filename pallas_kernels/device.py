"""Facts about the GPU that a call is traced for."""

import dataclasses
import re
from typing import Literal

import jax


@dataclasses.dataclass(frozen=True)
class Architecture:
    """What the kernels have to know of a family of GPUs."""

    capability: int  # major compute capability of its first member
    products: Literal["wgmma", "mma"]  # what multiplies matrices; wgmma exists on Hopper only
    shared_memory_bytes: int  # that one block may have


# Sizes of shared memory: CUDA programming guide, technical specifications per compute capability.
ARCHITECTURES = (
    Architecture(capability=9, products="wgmma", shared_memory_bytes=232_448),
    Architecture(capability=10, products="mma", shared_memory_bytes=232_448),
    Architecture(capability=12, products="mma", shared_memory_bytes=101_376),
)
# Of a GPU that is only described, the name is all that a trace knows.
NAMES = {
    9: re.compile(r"\b(H100|H200|H800|H20|GH200)\b"),
    10: re.compile(r"\b(B100|B200|B300|GB200|GB300)\b"),
    12: re.compile(r"\b(RTX PRO \d{4} Blackwell|RTX 50\d0|GB10)\b"),
}


def device_kind() -> str | None:
    """The GPU's name, such as "NVIDIA H200"; None if the call is not traced for a GPU.

    An abstract device in the current mesh wins over what the process owns, so that a program can be made for a GPU
    that is not here.
    """
    device = _device()
    return device.device_kind if device.platform == "gpu" else None


def gpu_obstacle() -> str | None:
    """Why a Mosaic GPU kernel cannot run on the device, or None."""
    kind = device_kind()
    if kind is None:
        return "the device is no GPU"
    capability = _capability()
    if capability is None:
        return f"the GPU is {kind!r}, whose compute capability is not known; wanted one of 9.0 or newer"
    if capability < ARCHITECTURES[0].capability:
        return f"the GPU is {kind!r} with compute capability {capability}.x, wanted 9.0 or newer"
    return None


def architecture() -> Architecture:
    """Of the device; where there is no GPU for the kernels, Hopper's, so that sizes can be computed anywhere."""
    capability = _capability() or 0
    known = [known for known in ARCHITECTURES if known.capability <= capability]
    return known[-1] if known else ARCHITECTURES[0]


def num_sms() -> int:
    """Streaming multiprocessors of the device: how many persistent blocks run at once. Raises without a GPU."""
    device = _device()
    count = getattr(device, "num_cores", None) or getattr(device, "core_count", None)
    if device.platform != "gpu" or not count:
        raise ValueError(f"the device {device.device_kind!r} has no streaming multiprocessors; run on a GPU")
    return int(count)


def _capability() -> int | None:
    """The major compute capability; None where it is not known."""
    kind = device_kind()
    if kind is None:
        return None
    stated = getattr(_device(), "compute_capability", None)
    if stated is not None:
        return int(str(stated).split(".")[0])
    return next((major for major, names in NAMES.items() if names.search(kind)), None)


def _device():
    return jax.sharding.get_abstract_mesh().abstract_device or jax.devices()[0]
