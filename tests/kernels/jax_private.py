"""The only place that uses JAX's private modules: what the interpreter of jax 0.11.2 has no public name for."""

import jax.numpy as jnp
from jax._src.pallas.mosaic_gpu import primitives
from jax._src.pallas.mosaic_gpu.interpret import interpret_pallas_call
from jax.interpreters import mlir


def reset_interpreter() -> None:
    """Forgets what the last interpreted kernel left behind, also after an error."""
    interpret_pallas_call.reset_gpu_interpret_mode_state()


def races_found() -> bool:
    """Whether the kernels since the last reset raced."""
    return bool(interpret_pallas_call.get_races().races_found)


def interpret_mma() -> None:
    """Teaches the CPU `plgpu.mma`, which the interpreter hands on as it is. May be called again."""

    def product(acc, a, b):
        return acc + jnp.matmul(a.astype(acc.dtype), b.astype(acc.dtype))

    mlir.register_lowering(primitives.mma_p, mlir.lower_fun(product, multiple_results=False), platform="cpu")
