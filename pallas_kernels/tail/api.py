"""The public function: checks, and the choice of an implementation."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.bridge.gates import BridgeGates
from pallas_kernels.device import num_sms
from pallas_kernels.implementation import Implementation, resolve
from pallas_kernels.tail.mosaic_gpu import tail_mosaic_gpu
from pallas_kernels.tail.reference import tail_reference
from pallas_kernels.tail.tiles import CHOICES, Tiles, default_tiles
from pallas_kernels.tail.xla import tail_xla
from pallas_kernels.tuning import tuned_tiles


def tail_scores(
    x: Float[Array, "B P H"],
    magnitude: Float[Array, "B P 1"],
    code: Float[Array, "B P C"],
    predecessor: Float[Array, "B P U C"],
    head: Float[Array, "B P k H"],
    write: Float[Array, "H M"],
    norm: Float[Array, " H"],
    gates: BridgeGates,
    *,
    eps: float,
    implementation: Implementation | None = None,
    tiles: Tiles | None = None,
) -> Float[Array, "B P U k"]:
    """s[b, p, u, v] in float32, with float32 products throughout.

    `magnitude` and `code` are the float32 r and c of the rows' last bridge; `predecessor` are the candidates' rows of
    the codebook as stored, `head` their rows of the output head. `tiles` is for "mosaic_gpu" alone. Raises ValueError
    for shapes that do not belong together and for a named implementation that cannot run.
    """
    _check(x, magnitude, code, predecessor, head, write, norm, gates)
    choice = resolve("tail_scores", implementation, obstacles(x, predecessor, head, write, gates))
    rows = (x, magnitude, code, predecessor, head)
    if choice == "reference":
        one = functools.partial(tail_reference, eps=eps)
        shared = (None, None, None)
        each = jax.vmap(jax.vmap(one, in_axes=(0,) * 5 + shared), in_axes=(0,) * 5 + shared)
        return each(x, magnitude[..., 0], code, predecessor, head, write, norm, gates)
    if choice == "xla":
        return tail_xla(*rows, write, norm, gates, eps=eps)
    if tiles is None:
        tiles = _tiles(x, code, write)
    return tail_mosaic_gpu(*rows, write, norm, gates, eps=eps, tiles=tiles)


def _tiles(x, code, write):
    positions, hidden, message = x.shape[0] * x.shape[1], x.shape[2], write.shape[1]
    heuristic = default_tiles(positions=positions, hidden=hidden, message=message, multiprocessors=num_sms())
    size = f"positions={positions},hidden={hidden},code={code.shape[-1]},message={message}"
    return tuned_tiles("tail_scores", size, heuristic)


def obstacles(x: Array, predecessor: Array, head: Array, write: Array, gates: BridgeGates) -> list[str]:
    """Why these arguments cannot go to the Mosaic GPU kernels."""
    found = []
    arrays = {
        "x": x,
        "predecessor": predecessor,
        "head": head,
        "write": write,
        "receiver_gate": gates.receiver_gate,
        "predecessor_gate": gates.predecessor_gate,
        "message": gates.message,
    }
    for name, array in arrays.items():
        if array.dtype != jnp.bfloat16:
            found.append(f"{name} is {array.dtype}, wanted bfloat16")
    for name, count in (("predecessors", predecessor.shape[2]), ("receivers", head.shape[2])):
        if count != CHOICES:
            found.append(f"a position has {count} {name}, wanted {CHOICES}")
    sizes = (("hidden size", write.shape[0]), ("code width", predecessor.shape[-1]), ("message width", write.shape[1]))
    for name, size in sizes:
        if size % 128:
            found.append(f"the {name} is {size}, wanted a multiple of 128")
    return found


def _check(x, magnitude, code, predecessor, head, write, norm, gates):
    rows, hidden, message, width = x.shape[:2], x.shape[2], write.shape[1], code.shape[-1]
    wanted = {
        "magnitude": (magnitude, (*rows, 1)),
        "code": (code, (*rows, width)),
        "predecessor": (predecessor, (*rows, predecessor.shape[2], width)),
        "head": (head, (*rows, head.shape[2], hidden)),
        "write": (write, (hidden, message)),
        "norm": (norm, (hidden,)),
        "gates.receiver_gate": (gates.receiver_gate, (message, width)),
        "gates.predecessor_gate": (gates.predecessor_gate, (message, width)),
        "gates.message": (gates.message, (message, width)),
        "gates.gate_bias": (gates.gate_bias, (message,)),
    }
    wrong = [
        f"{name} is {array.shape}, wanted {shape}" for name, (array, shape) in wanted.items() if array.shape != shape
    ]
    if wrong:
        raise ValueError(f"tail_scores: with x {x.shape}: {'; '.join(wrong)}")
