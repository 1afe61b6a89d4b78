"""The float8 kernel does not race, and the tests would see it if it did."""

import functools
import itertools

import jax
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.retrieval import Tiles, mosaic_gpu
from pallas_kernels.retrieval.queries import split_queries
from tests.kernels import retrieval_cases as cases
from tests.kernels.interpreter import interpret
from tests.kernels.planted import nothing, shadow_reads
from tests.tolerances import E4M3_SPLIT, relative_rms

pytestmark = pytest.mark.kernels
# Three steps of two chunks per block, and three slots: each is used again, within a step and across steps.
ALONE = Tiles(consumers=2, stages=3, blocks=1)
PAIR = Tiles(consumers=2, stages=3, cluster=2, blocks=2)


@functools.cache
def problem(tiles):
    case = cases.draw(rows=16, vocabulary=3 * tiles.cluster * tiles.tokens, hidden=256)
    queries, scale = jax.jit(split_queries)(case.h)
    return queries, case.coarse_head, cases.coarse_scores(case) / np.asarray(scale)[:, None]


def run(tiles) -> tuple[bool, float]:
    """Whether the kernel raced, and its error."""
    queries, coarse_head, want = problem(tiles)
    (scores, best), races = interpret(
        lambda queries, coarse_head: mosaic_gpu.coarse_scores(queries, coarse_head, tiles), queries, coarse_head
    )
    error = relative_rms(np.reshape(scores, want.shape), want)
    return races, max(error, relative_rms(best, np.max(scores, axis=-1)))


@pytest.mark.parametrize("tiles", [ALONE, PAIR], ids=["alone", "pair"])
@pytest.mark.parametrize("attempt", range(3))
def test_no_race(tiles, attempt):
    """The schedule differs from run to run. The matrix products read as late as the hardware may.

    The blocks of a pair share their loads of queries on a GPU; interpreted, each loads its own.
    """
    with shadow_reads(mosaic_gpu):
        races, error = run(tiles)
    assert not races
    assert error <= E4M3_SPLIT


def skipping(name, site):
    """A `plgpu` function that does nothing at one of the places that call it, counted in the order of the trace."""
    calls = itertools.count()

    def function(*args, **kwargs):
        if next(calls) != site:
            getattr(plgpu, name)(*args, **kwargs)

    return {name: function}


def releasing_early():
    """A slot is free again as soon as it is filled."""
    calls = itertools.count()
    barriers = []

    def barrier_wait(barrier):
        plgpu.barrier_wait(barrier)
        call = next(calls)
        if call == 0:  # the producer waits for a free slot
            barriers.append(barrier.ref)
        if call == 2:  # a consumer waits for a filled one
            (slot,) = barrier.transforms[-1].indices
            plgpu.barrier_arrive(barriers[0].at[slot])

    return {"barrier_wait": barrier_wait, "barrier_arrive": nothing}


def too_few_arrivals():
    """A slot is free when one of the two consumers has read it, and full when one of the two copies has arrived."""
    return {"Barrier": lambda num_arrivals, num_barriers: plgpu.Barrier(num_arrivals=1, num_barriers=num_barriers)}


BUGS = {
    "the producer does not wait for a free slot": lambda: skipping("barrier_wait", 0),
    "the producer leaves slots unread": lambda: skipping("barrier_wait", 1),
    "consumers do not wait for a filled slot": lambda: skipping("barrier_wait", 2),
    "a slot is released before its products": releasing_early,
    "barriers count too few arrivals": too_few_arrivals,
    "scores leave before they are written": lambda: {"commit_smem": nothing},
    "scores are overwritten before they have left": lambda: skipping("wait_smem_to_gmem", 0),
    "a block ends before its scores have left": lambda: skipping("wait_smem_to_gmem", 1),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_shows(bug):
    """As a race, as wrong numbers or as an error of the interpreter."""
    for _ in range(4):  # not every schedule shows every race
        with shadow_reads(mosaic_gpu, **BUGS[bug]()):
            try:
                races, error = run(ALONE)
            except jax.errors.JaxRuntimeError:
                return
        if races or error > E4M3_SPLIT:
            return
    pytest.fail("not noticed")
