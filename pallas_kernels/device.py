"""Facts about the device that a call is traced for."""

import re

import jax

# The kernels use warpgroup matrix products (wgmma) and TMA: compute capability 9.0 and no other.
HOPPER = re.compile(r"\b(H100|H200|H800|H20|GH200)\b")


def device_kind() -> str | None:
    """The GPU's name, such as "NVIDIA H200"; None if the call is not traced for a GPU.

    An abstract device in the current mesh wins over what the process owns, so that a program can be made for a GPU
    that is not here.
    """
    device = _device()
    return device.device_kind if device.platform == "gpu" else None


def hopper_obstacle() -> str | None:
    """Why a Mosaic GPU kernel cannot run on the device, or None."""
    kind = device_kind()
    if kind is None:
        return "the device is no GPU"
    if not HOPPER.search(kind):
        return f"the GPU is {kind!r}, wanted a Hopper GPU (compute capability 9.0)"
    return None


def num_sms() -> int:
    """Streaming multiprocessors of the device: how many persistent blocks run at once. Raises without a GPU."""
    device = _device()
    count = getattr(device, "num_cores", None) or getattr(device, "core_count", None)
    if device.platform != "gpu" or not count:
        raise ValueError(f"the device {device.device_kind!r} has no streaming multiprocessors; run on a GPU")
    return int(count)


def _device():
    return jax.sharding.get_abstract_mesh().abstract_device or jax.devices()[0]
