"""jax.jit for tests."""

import functools

import jax

# Compilation is nearly all of the tests' time. The program stays the same; its machine code is less polished.
jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
