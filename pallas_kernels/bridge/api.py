"""The public function: checks, and the choice of an implementation."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.bridge.gates import BridgeGates
from pallas_kernels.bridge.mosaic_gpu import bridge_mosaic_gpu
from pallas_kernels.bridge.reference import bridge_reference
from pallas_kernels.bridge.tiles import Tiles, default_tiles
from pallas_kernels.bridge.xla import bridge_xla
from pallas_kernels.device import num_sms
from pallas_kernels.implementation import Implementation, resolve
from pallas_kernels.skinny_matmul import BLOCK
from pallas_kernels.tuning import tuned_tiles


def bridge(
    x: Float[Array, "B T H"],
    anchor_code: Float[Array, "B C"],
    readout: Float[Array, "C H"],
    write: Float[Array, "H M"],
    gates: BridgeGates,
    *,
    eps: float,
    implementation: Implementation | None = None,
    tiles: Tiles | None = None,
) -> tuple[Float[Array, "B T H"], Float[Array, "B T 1"], Float[Array, "B T C"]]:
    """x' in x's dtype, and the float32 magnitudes r and codes c that made it.

    `anchor_code` is sqrt(C) times the anchors' codebook vectors, and is the code of each block's row 0. Products take
    operands of x's dtype and accumulate in float32; everything between them is float32. Only "xla" and "reference" have
    gradients. `tiles` is for "mosaic_gpu" alone. Raises ValueError for shapes that do not belong together and for a
    named implementation that cannot run.
    """
    _check(x, anchor_code, readout, write, gates)
    choice = resolve("bridge", implementation, obstacles(x, readout, write, gates))
    if choice == "reference":
        one_block = functools.partial(bridge_reference, eps=eps)
        written, r, c = jax.vmap(one_block, in_axes=(0, 0, None, None, None))(x, anchor_code, readout, write, gates)
        return written.astype(x.dtype), r, c
    if choice == "xla":
        return bridge_xla(x, anchor_code, readout, write, gates, eps=eps)
    if tiles is None:
        tiles = _tiles(x, readout, write)
    return bridge_mosaic_gpu(x, anchor_code, readout, write, gates, eps=eps, tiles=tiles)


def _tiles(x, readout, write):
    slots, block_rows, hidden = x.shape
    code, message = len(readout), write.shape[1]
    heuristic = default_tiles(
        rows=slots * block_rows, block_rows=block_rows, hidden=hidden, code=code, multiprocessors=num_sms()
    )
    size = f"slots={slots},rows={block_rows},hidden={hidden},code={code},message={message}"
    return tuned_tiles("bridge", size, heuristic)


def obstacles(x: Array, readout: Array, write: Array, gates: BridgeGates) -> list[str]:
    """Why these arguments cannot go to the Mosaic GPU kernels."""
    found = []
    weights = {
        "readout": readout,
        "write": write,
        "receiver_gate": gates.receiver_gate,
        "predecessor_gate": gates.predecessor_gate,
        "message": gates.message,
    }
    for name, array in ({"x": x} | weights).items():
        if array.dtype != jnp.bfloat16:
            found.append(f"{name} is {array.dtype}, wanted bfloat16")
    rows = x.shape[1]
    if rows % 8 or BLOCK % rows:
        found.append(f"a block has {rows} rows, wanted 8, 16, 32 or 64")
    for name, size in (
        ("hidden size", write.shape[0]),
        ("code width", len(readout)),
        ("message width", write.shape[1]),
    ):
        if size % 128:
            found.append(f"the {name} is {size}, wanted a multiple of 128")
    return found


def _check(x, anchor_code, readout, write, gates):
    (slots, _, hidden), code, message = x.shape, readout.shape[0], write.shape[1]
    wanted = {
        "anchor_code": (anchor_code, (slots, code)),
        "readout": (readout, (code, hidden)),
        "write": (write, (hidden, message)),
        "gates.receiver_gate": (gates.receiver_gate, (message, code)),
        "gates.predecessor_gate": (gates.predecessor_gate, (message, code)),
        "gates.message": (gates.message, (message, code)),
        "gates.gate_bias": (gates.gate_bias, (message,)),
    }
    wrong = [
        f"{name} is {array.shape}, wanted {shape}" for name, (array, shape) in wanted.items() if array.shape != shape
    ]
    if wrong:
        raise ValueError(f"bridge: with x {x.shape}: {'; '.join(wrong)}")
