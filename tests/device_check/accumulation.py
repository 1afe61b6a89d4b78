"""How exact the matrix unit's float8 sums are: one accumulator over all of K, or a fresh one every 128 of it.

The interpreter adds in float32 whatever the kernel says, so only a GPU can show the difference.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float

from pallas_kernels.matrix_unit import matrix_unit
from pallas_kernels.shared_memory import tiled

ROWS, COLUMNS, CHUNK = 64, 16, 128


def float8_sums(a: Float[Array, "64 K"], b: Float[Array, "16 K"], *, chunks: int) -> Float[Array, "64 16"]:
    """a b^T with a fresh accumulator every `chunks` chunks of 128, added in float32; operands are e4m3."""
    groups = a.shape[1] // CHUNK // chunks
    unit = matrix_unit()

    def float8_sums_kernel(a_g, b_g, out_g, a_s, b_s, out_s, loaded):
        def group(index, total):
            def operands(chunk):
                columns = pl.ds((index * chunks + chunk) * CHUNK, CHUNK)
                plgpu.copy_gmem_to_smem(a_g.at[:, columns], a_s, loaded)
                plgpu.copy_gmem_to_smem(b_g.at[:, columns], b_s, loaded)
                plgpu.barrier_wait(loaded)
                return [[(a_s, b_s.T)]]

            (added,) = unit.accumulate(chunks, operands, (COLUMNS,), rows=ROWS, finished=lambda _: None)
            return total + added

        start = plgpu.layout_cast(jnp.zeros((ROWS, COLUMNS), jnp.float32), plgpu.Layout.WGMMA)
        out_s[...] = jax.lax.fori_loop(0, groups, group, start)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(out_s, out_g)
        plgpu.wait_smem_to_gmem(0)

    return plgpu.kernel(
        float8_sums_kernel,
        out_type=jax.ShapeDtypeStruct((ROWS, COLUMNS), jnp.float32),
        scratch_types={
            "a_s": tiled(a.dtype, 128, ROWS, CHUNK),
            "b_s": tiled(b.dtype, 128, COLUMNS, CHUNK),
            "out_s": plgpu.SMEM((ROWS, COLUMNS), jnp.float32),
            "loaded": plgpu.Barrier(num_arrivals=2),
        },
    )(a, b)


def check(hidden: int = 5120) -> dict[str, Any]:
    """Relative errors (root mean square, against float64) of sums that are promoted and of sums that are not."""
    rng = np.random.default_rng(0)
    a, b = (jnp.asarray(rng.normal(size=(rows, hidden)), jnp.float8_e4m3fn) for rows in (ROWS, COLUMNS))
    wanted = np.asarray(a, np.float64) @ np.asarray(b, np.float64).T
    errors = {}
    for name, chunks in (("promoted", 1), ("not_promoted", hidden // CHUNK)):
        got = np.asarray(jax.jit(functools.partial(float8_sums, chunks=chunks))(a, b), np.float64)
        errors[name] = float(np.linalg.norm(got - wanted) / np.linalg.norm(wanted))
    # Promotion is what the retrieval relies on; sums that are not promoted are shown, not judged.
    return {"check": "float8 sums", "errors_rms": errors, "ok": errors["promoted"] < 1e-3}
