"""A Mosaic GPU kernel with one block of threads per row: shares, residual and norm in one pass."""

import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float

from pallas_kernels.row_norm import RowNorm, scaled

THREADS = 128


def residual_rows(
    shares: Float[Array, "shares T H"], residual: Float[Array, "T H"] | None, norm: RowNorm | None, dtype
) -> tuple[Float[Array, "T H"], Float[Array, "T H"] | None]:
    """residual plus the sum of the shares, rounded to `dtype`, and the norm of that."""
    count, rows, width = shares.shape
    inputs = [shares, *([] if residual is None else [residual]), *([] if norm is None else [norm.weight])]
    # As many elements of a row per thread and load as its width allows, 16 bytes of float32 at best.
    layout = plgpu.Layout.WG_STRIDED((width,), vec_size=math.gcd(width // THREADS, 4))

    def residual_rows(shares_g, *refs):
        refs = list(refs)
        row = lax.axis_index("row")
        load = lambda ref: plgpu.load(ref, layout=layout, optimized=False)  # noqa: E731
        parts = [load(shares_g.at[share, row]) for share in range(count)]
        old = None if residual is None else load(refs.pop(0).at[row])
        weight = None if norm is None else load(refs.pop(0))
        total = sum(parts[1:], parts[0])
        if old is not None:
            total = old.astype(jnp.float32) + total
        total = total.astype(dtype)
        refs.pop(0)[row] = total
        if norm is not None and weight is not None:
            square = jnp.sum(jnp.square(total.astype(jnp.float32)))
            refs.pop(0)[row] = scaled(total, lax.rsqrt(square / width + norm.eps), weight, norm.form)

    out = jax.ShapeDtypeStruct((rows, width), dtype)
    results = plgpu.kernel(
        residual_rows,
        out_type=(out,) if norm is None else (out, out),
        grid=(rows,),
        grid_names=("row",),
    )(*inputs)
    return results[0], None if norm is None else results[1]
