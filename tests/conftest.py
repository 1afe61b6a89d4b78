"""One strict process for all tests: CPU, true float32 products, no silent promotion of types."""

import gc
import os
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import pytest

jax.config.update("jax_default_matmul_precision", "highest")
jax.config.update("jax_numpy_dtype_promotion", "strict")

# Linux gives a process 65,530 by default. Compiled programs take them, and XLA dies where there is none left.
MEMORY_MAPS = 25_000


@pytest.fixture(scope="module", autouse=True)
def few_memory_maps():
    """After a file of tests, forgets compiled programs if they have become many."""
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > MEMORY_MAPS:
        jax.clear_caches()
        gc.collect()
