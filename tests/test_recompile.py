"""Requests of any length share the programs of their bucket."""

import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dspine_jax.generate import Stream, generate
from tests.copying import copying_pair
from tests.scripted import random_prompts


@pytest.fixture
def compilations(caplog):
    """A function that tells how many programs were compiled since the last call."""
    caplog.set_level(logging.WARNING)

    def count() -> int:
        found = sum(record.getMessage().startswith("Compiling ") for record in caplog.records)
        caplog.clear()
        return found

    with jax.log_compiles():
        yield count


def serve(prompt, new, stop, streamed):
    pair = copying_pair()
    if streamed:
        list(Stream(pair, prompt, max_new_tokens=new, stop_token_ids=stop))
    else:
        generate(pair, [prompt], max_new_tokens=new, stop_token_ids=stop)


def test_thirty_requests_compile_nothing_after_the_first(compilations):
    for streamed in (False, True):
        serve([3, 4], 5, [1], streamed)
    compilations()
    rng = np.random.default_rng(0)
    lengths = np.linspace(1, 200, 30).astype(int)
    for index, prompt in enumerate(random_prompts(71, lengths.tolist())):
        new, stops = int(rng.integers(1, 41)), int(rng.integers(0, 5))
        serve(prompt, new, rng.integers(0, 96, stops).tolist(), streamed=index % 3 == 0)
    assert compilations() == 0


def test_new_weights_of_the_same_pair_compile_nothing(compilations):
    serve([3, 4], 5, [1], streamed=False)
    other = copying_pair(seed=9)
    compilations()
    generate(other, [[3, 4]], max_new_tokens=5)
    assert compilations() == 0


def test_a_compilation_is_counted(compilations):
    """Without this the counts of zero above would prove nothing."""
    jax.jit(lambda x: x * 3)(jnp.ones(7))
    assert compilations() > 0
