"""The public functions: checks, and the choice of an implementation."""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.device import num_sms
from pallas_kernels.implementation import Implementation, resolve
from pallas_kernels.projection import mosaic_gpu, reference, xla
from pallas_kernels.projection.mosaic_rows import THREADS, residual_rows
from pallas_kernels.projection.tiles import ROW_LIMIT, STEP, Kind, Tiles, default_tiles
from pallas_kernels.row_norm import Form, RowNorm
from pallas_kernels.tuning import tuned_tiles

LINES = 8  # rows of a matrix that TMA copies together
NARROW = 64  # outputs of a weight so small that a padded copy of it costs nothing


def project(
    x: Float[Array, "... K"],
    weights: Sequence[Float[Array, "O K"]],
    *,
    implementation: Implementation | None = None,
    tiles: Tiles | None = None,
) -> tuple[Float[Array, "... O"], ...]:
    """x W^T of each weight, in x's dtype; all of them read x at once.

    Products take operands of x's dtype and accumulate in float32. Only "xla" and "reference" have gradients. `tiles` is
    for "mosaic_gpu" alone. Raises ValueError for shapes that do not belong together and for a named implementation that
    cannot run.
    """
    _check("project", x, {f"weights[{i}]": (weight, (None, x.shape[-1])) for i, weight in enumerate(weights)})
    rows = x.reshape(-1, x.shape[-1])
    choice = resolve("project", implementation, obstacles(rows, weights, pads=True))
    if choice == "mosaic_gpu":
        tiles = tiles or _tiles("several", "project", rows, weights)
        results = _project(rows, tuple(weights), tiles=tiles)
    elif choice == "xla":
        results = tuple(xla.project_xla(rows, weight) for weight in weights)
    else:
        results = tuple(reference.project_reference(rows, weight).astype(x.dtype) for weight in weights)
    return tuple(result.reshape(*x.shape[:-1], -1) for result in results)


def project_gated(
    x: Float[Array, "... K"],
    gate: Float[Array, "O K"],
    up: Float[Array, "O K"],
    *,
    implementation: Implementation | None = None,
    tiles: Tiles | None = None,
) -> Float[Array, "... O"]:
    """silu(x gate^T) * (x up^T) in x's dtype.

    The kernel and the reference round once, at the end; XLA's form rounds each factor, as torch does. The rest is as in
    `project`.
    """
    _check("project_gated", x, {"gate": (gate, (None, x.shape[-1])), "up": (up, gate.shape)})
    rows = x.reshape(-1, x.shape[-1])
    choice = resolve("project_gated", implementation, obstacles(rows, (gate, up)))
    if choice == "mosaic_gpu":
        tiles = tiles or _tiles("gated", "project_gated", rows, (gate,))
        result = _project_gated(rows, gate, up, tiles=tiles)
    elif choice == "xla":
        result = xla.project_gated_xla(rows, gate, up)
    else:
        result = reference.project_gated_reference(rows, gate, up)
    return result.reshape(*x.shape[:-1], -1)


def project_residual(
    x: Float[Array, "... K"],
    weight: Float[Array, "H K"],
    residual: Float[Array, "... H"],
    *,
    implementation: Implementation | None = None,
    tiles: Tiles | None = None,
) -> Float[Array, "... H"]:
    """residual + x W^T in x's dtype.

    The kernel and the reference round the sum once; XLA's form also rounds the product, as torch does. The rest is as
    in `project`.
    """
    result, _ = _sum_and_norm("project_residual", x, weight, residual, None, implementation, tiles)
    return result


def project_norm(
    x: Float[Array, "... K"],
    weight: Float[Array, "H K"],
    residual: Float[Array, "... H"] | None,
    norm: RowNorm,
    *,
    implementation: Implementation | None = None,
    tiles: Tiles | None = None,
) -> tuple[Float[Array, "... H"], Float[Array, "... H"]]:
    """What `project_residual` gives, or x W^T alone, and the norm of that."""
    result, normed = _sum_and_norm("project_norm", x, weight, residual, norm, implementation, tiles)
    assert normed is not None
    return result, normed


def _sum_and_norm(op, x, weight, residual, norm, implementation, tiles):
    hidden = weight.shape[0]
    wanted: dict = {"weight": (weight, (None, x.shape[-1]))}
    if residual is not None:
        wanted["residual"] = (residual, (*x.shape[:-1], hidden))
    if norm is not None:
        wanted["norm.weight"] = (norm.weight, (hidden,))
    _check(op, x, wanted)
    rows = x.reshape(-1, x.shape[-1])
    old = None if residual is None else residual.reshape(-1, hidden)
    found = obstacles(rows, (weight,))
    if hidden % THREADS:
        found.append(f"the weight has {hidden} outputs, wanted a multiple of {THREADS}")
    choice = resolve(op, implementation, found)
    if choice == "mosaic_gpu":
        # With or without a norm, the product and its tiles are the same.
        tiles = tiles or _tiles("shares", "project_norm", rows, (weight,))
        form, eps, scale = (None, 0.0, None) if norm is None else (norm.form, norm.eps, norm.weight)
        result, normed = _project_norm(rows, weight, old, scale, tiles=tiles, form=form, eps=eps)
    elif choice == "xla":
        result, normed = xla.project_norm_xla(rows, weight, old, norm)
    else:
        result, normed = reference.project_norm_reference(rows, weight, old, norm)
    shape = (*x.shape[:-1], hidden)
    return result.reshape(shape), None if normed is None else normed.reshape(shape)


# Functions of their own for the compiler: the layers of a model trace and lower a kernel once.
@functools.partial(jax.jit, static_argnames="tiles")
def _project(x, weights, *, tiles: Tiles):
    outs = mosaic_gpu.projections(_whole(x), [_whole(weight) for weight in weights], tiles)
    return tuple(out[: len(x), : len(weight)] for out, weight in zip(outs, weights, strict=True))


@functools.partial(jax.jit, static_argnames="tiles")
def _project_gated(x, gate, up, *, tiles: Tiles):
    return mosaic_gpu.gated_projection(_whole(x), gate, up, tiles)[: len(x)]


@functools.partial(jax.jit, static_argnames=("tiles", "form", "eps"))
def _project_norm(x, weight, residual, scale, *, tiles: Tiles, form: Form | None, eps: float):
    shares = mosaic_gpu.projection_shares(_whole(x), weight, tiles)[:, : len(x)]
    norm = None if form is None else RowNorm(weight=scale, eps=eps, form=form)
    return residual_rows(shares, residual, norm, x.dtype)


def _whole(x):
    """Zero rows appended where TMA could not copy all of them."""
    return jnp.pad(x, ((0, -len(x) % LINES), (0, 0))) if len(x) % LINES else x


def _tiles(kind: Kind, op: str, x, weights):
    rows, depth = x.shape
    outputs = tuple(-(-len(weight) // LINES) * LINES for weight in weights)
    heuristic = default_tiles(kind, rows=rows, outputs=outputs, depth=depth, multiprocessors=num_sms())
    return tuned_tiles(op, f"rows={rows},outputs={'+'.join(map(str, outputs))},depth={depth}", heuristic)


def obstacles(x: Array, weights: Sequence[Array], *, pads: bool = False) -> list[str]:
    """Why these arguments cannot go to the kernels. `pads`: narrow weights may have any number of outputs."""
    found = []
    for name, array in {"x": x, **{f"weight {i}": weight for i, weight in enumerate(weights)}}.items():
        if array.dtype != jnp.bfloat16:
            found.append(f"{name} is {array.dtype}, wanted bfloat16")
    if not 1 <= len(x) <= ROW_LIMIT:
        found.append(f"there are {len(x)} rows, wanted 1 to {ROW_LIMIT}")
    if x.shape[-1] % STEP:
        found.append(f"the rows are {x.shape[-1]} wide, wanted a multiple of {STEP}")
    for index, weight in enumerate(weights):
        if len(weight) % LINES and (len(weight) > NARROW or not pads):
            found.append(f"weight {index} has {len(weight)} outputs, wanted a multiple of {LINES}")
    return found


def _check(op: str, x: Array, wanted: dict[str, tuple[Array, tuple[int | None, ...]]]) -> None:
    wrong = [
        f"{name} is {array.shape}, wanted {shape}"
        for name, (array, shape) in wanted.items()
        if len(array.shape) != len(shape)
        or any(w not in (None, got) for got, w in zip(array.shape, shape, strict=True))
    ]
    if wrong or not wanted:
        raise ValueError(f"{op}: with x {x.shape}: {'; '.join(wrong) or 'no weight, wanted at least one'}")
