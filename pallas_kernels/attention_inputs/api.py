"""The public functions: checks, and the choice of an implementation."""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pallas_kernels.attention_inputs.heads import Heads
from pallas_kernels.attention_inputs.mosaic_gpu import attention_inputs
from pallas_kernels.attention_inputs.reference import rotate_reference
from pallas_kernels.attention_inputs.xla import rotate_xla, store_xla
from pallas_kernels.implementation import Implementation, resolve
from pallas_kernels.rope import Rope
from pallas_kernels.warp_rows import STEP

BOX = 256  # columns that TMA copies at a time
LINE = 8  # columns: it wants rows of whole 16 bytes


def rotate_heads(
    projections: Sequence[Heads],
    positions: Int[Array, "B T"],
    rope: Rope,
    *,
    implementation: Implementation | None = None,
) -> tuple[Float[Array, "B T N D"], ...]:
    """The normed and rotated heads of each projection, in its dtype.

    The kernel wants bfloat16 and heads of one length up to 256, of which a multiple of 64 is rotated; half of that
    divides the head. Raises ValueError for shapes that do not belong together and for a named implementation that
    cannot run.
    """
    op = "rotate_heads"
    named = {f"projections[{index}]": one for index, one in enumerate(projections)}
    _check(op, named, positions, rope)
    match resolve(op, implementation, _obstacles(named, rope)):
        case "mosaic_gpu":
            return _rotate(tuple(projections), positions, rope=rope)
        case "xla":
            return tuple(rotate_xla(one, positions, rope) for one in projections)
        case "reference":
            return tuple(rotate_reference(one, positions, rope) for one in projections)


def rotate_and_store(
    queries: Sequence[Heads],
    keys: Heads,
    values: Float[Array, "B T KD"],
    k_cache: Float[Array, "R K D"],
    v_cache: Float[Array, "R K D"],
    at: Int[Array, "B T"],
    positions: Int[Array, "B T"],
    rope: Rope,
    *,
    implementation: Implementation | None = None,
) -> tuple[tuple[Float[Array, "B T N D"], ...], Float[Array, "R K D"], Float[Array, "R K D"]]:
    """As `rotate_heads`; keys, rotated too, and values go to row `at` of their caches, which are returned.

    A row with `at` = R goes nowhere; no two others may have the same place. The kernel changes the caches where they
    lie if the caller donates them.
    """
    op = "rotate_and_store"
    named = {f"queries[{index}]": one for index, one in enumerate(queries)} | {"keys": keys}
    _check(op, named, positions, rope)
    cache = (len(k_cache), keys.count, keys.dim)
    wanted = {
        "values": (values, (*positions.shape, keys.count * keys.dim)),
        "k_cache": (k_cache, cache),
        "v_cache": (v_cache, cache),
        "at": (at, positions.shape),
    }
    wrong = [
        f"{name} is {array.shape}, wanted {shape}" for name, (array, shape) in wanted.items() if array.shape != shape
    ]
    if wrong:
        raise ValueError(f"{op}: with {keys.count} keys of {keys.dim}: {'; '.join(wrong)}")
    found = _obstacles(named, rope)
    for name, array in {"values": values, "k_cache": k_cache, "v_cache": v_cache}.items():
        if array.dtype != jnp.bfloat16:
            found.append(f"{name} is {array.dtype}, wanted bfloat16")
    choice = resolve(op, implementation, found)
    if choice == "mosaic_gpu":
        return _rotate_and_store(tuple(queries), keys, values, k_cache, v_cache, at, positions, rope=rope)
    rotate = rotate_reference if choice == "reference" else rotate_xla
    values = values.reshape(*positions.shape, keys.count, keys.dim)
    rotated = tuple(rotate(one, positions, rope) for one in queries)
    return rotated, store_xla(k_cache, at, rotate(keys, positions, rope)), store_xla(v_cache, at, values)


# Functions of their own for the compiler: the layers of a model trace and lower a kernel once.
@functools.partial(jax.jit, static_argnames="rope")
def _rotate(projections, positions, *, rope: Rope):
    return attention_inputs(projections, rope.table(positions, jnp.bfloat16))


@functools.partial(jax.jit, static_argnames="rope")
def _rotate_and_store(queries, keys, values, k_cache, v_cache, at, positions, *, rope: Rope):
    caches = jax.new_ref(k_cache), jax.new_ref(v_cache)
    as_they_are = Heads(values, None, keys.count, keys.dim)
    heads = attention_inputs((keys, as_they_are, *queries), rope.table(positions, jnp.bfloat16), at, caches)
    k_cache, v_cache = (jax.freeze(cache) for cache in caches)
    return heads, k_cache, v_cache


def _check(op: str, projections: dict[str, Heads], positions: Array, rope: Rope) -> None:
    wrong = []
    for name, one in projections.items():
        *lead, width = one.rows.shape
        if tuple(lead) != positions.shape or one.count < 1 or width % one.count or one.place < one.dim:
            wrong.append(
                f"{name} is {one.rows.shape}, wanted {positions.shape} rows with equal places for {one.count} heads of "
                f"{one.dim}"
            )
        if one.norm is None or one.norm.weight.shape != (one.dim,):
            shape = None if one.norm is None else one.norm.weight.shape
            wrong.append(f"the norm's weight of {name} is {shape}, wanted ({one.dim},)")
        if rope.dim % 2 or not 0 < rope.dim <= one.dim:
            wrong.append(f"{rope.dim} dimensions of {name} are to be rotated, wanted an even number up to {one.dim}")
    if wrong or not projections:
        raise ValueError(f"{op}: {'; '.join(wrong) or 'no projection, wanted at least one'}")


def _obstacles(projections: dict[str, Heads], rope: Rope) -> list[str]:
    """Why the kernel cannot run."""
    found = []
    for name, one in projections.items():
        for part, array in {name: one.rows, f"the norm's weight of {name}": one.norm and one.norm.weight}.items():
            if array is not None and array.dtype != jnp.bfloat16:
                found.append(f"{part} is {array.dtype}, wanted bfloat16")
        if one.rows.shape[-1] % LINE:
            found.append(f"{name} has rows of {one.rows.shape[-1]}, wanted a multiple of {LINE}")
        if one.dim > BOX:
            found.append(f"a head of {name} is {one.dim} long, wanted at most {BOX}")
        if rope.dim % (2 * STEP) or one.dim % (rope.dim // 2):
            found.append(
                f"{rope.dim} of {one.dim} dimensions of {name} are rotated, wanted a multiple of {2 * STEP} whose half "
                "divides the head"
            )
    if len({one.dim for one in projections.values()}) > 1:
        found.append(f"heads of {sorted({one.dim for one in projections.values()})} in one call, wanted one length")
    return found
