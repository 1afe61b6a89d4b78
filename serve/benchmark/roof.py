"""How much of the device's memory bandwidth a pass uses: the bytes that it must move, over its time.

The bytes are those of `dspine plan`: every weight once, every cached value of the context once. What an implementation
moves besides is not counted, so 100 percent is what no program can exceed.
"""

import dataclasses

import jax

from dspine_jax.deviceless import GPUS
from dspine_jax.pair import Pair
from dspine_jax.planning import traffic
from dspine_jax.planning.gpu import GPU
from dspine_jax.planning.pair import AbstractPair


@dataclasses.dataclass(frozen=True)
class Roof:
    """Bytes per second that the memory can move at most, and who says so."""

    bytes_per_second: float
    source: str


@dataclasses.dataclass(frozen=True)
class Achieved:
    """One way at one concurrency."""

    concurrency: int
    way: str
    context: int  # tokens per request, the mean over the run
    bytes: int  # of one cycle of a whole block, or of one step
    parts: dict[str, int]  # the same by what they are
    seconds: float  # median of one cycle or step, host included
    gigabytes_per_second: float
    percent_of_roof: float


def find_roof(gbps: float | None) -> Roof | str:
    """The roof as given, or of the described GPU that this device is; otherwise the reason why there is none."""
    if gbps is not None:
        return Roof(gbps * 1e9, "--roof-gbps")
    kind = jax.devices()[0].device_kind
    for path in sorted(GPUS.glob("*.txtpb")):
        gpu = GPU.read(path.stem)
        if gpu.model == kind:
            return Roof(gpu.bandwidth, f"description of {kind}")
    return f"the memory bandwidth of {kind} is not known here; give it with --roof-gbps"


def achieved(roof: Roof, pair: Pair, *, way: str, concurrency: int, context: int, seconds: float) -> Achieved:
    """What the median cycle, or step, moved per second."""
    shapes = AbstractPair.build(pair.target_config, pair.drafter_config, pair.dtype, pair.plan.options)
    count = traffic.cycle if way == "speculative" else traffic.plain_step
    moved = count(shapes, concurrency, context)
    return Achieved(
        concurrency=concurrency,
        way=way,
        context=context,
        bytes=moved.bytes,
        parts=moved.parts,
        seconds=seconds,
        gigabytes_per_second=moved.bytes / seconds / 1e9,
        percent_of_roof=100 * moved.bytes / seconds / roof.bytes_per_second,
    )
