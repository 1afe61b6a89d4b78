"""jax.jit for tests: the same programs, whose machine code is less polished."""

import functools

import jax

# Compilation is nearly all of the tests' time.
jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
# For programs that run about as long as they compile: half of the compilation, and nearly the usual speed.
longer_jit = functools.partial(
    jax.jit, compiler_options={"xla_backend_optimization_level": 1, "xla_cpu_parallel_codegen_split_count": 1}
)
