"""The only place that uses JAX's private modules: the interpreter's race report has no public name in jax 0.11.2."""

from jax._src.pallas.mosaic_gpu.interpret import interpret_pallas_call


def reset_interpreter() -> None:
    """Forgets what the last interpreted kernel left behind, also after an error."""
    interpret_pallas_call.reset_gpu_interpret_mode_state()


def races_found() -> bool:
    """Whether the kernels since the last reset raced."""
    return bool(interpret_pallas_call.get_races().races_found)
