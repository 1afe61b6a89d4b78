"""The retrieval in every form: numbers, and which token wins."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.device import architecture
from pallas_kernels.retrieval import Tiles, candidate_tiles, default_tiles, mosaic_gpu, quantize_head, retrieve
from pallas_kernels.retrieval.queries import split_queries
from pallas_kernels.retrieval.selection import TILE, best_tokens
from pallas_kernels.retrieval.tiles import ROWS
from tests.kernels import retrieval_cases as cases
from tests.kernels.interpreter import interpret
from tests.kernels.machine_code import compile_program
from tests.kernels.retrieval_programs import PROGRAMS
from tests.tolerances import E4M3_SPLIT, FP32_OP, assert_close

pytestmark = pytest.mark.kernels
FORMS = ("reference", "xla", "mosaic_gpu")
TWO_BLOCKS = Tiles(consumers=2, stages=2, blocks=2)


def run(case, form, *, tiles=TWO_BLOCKS, **options):
    """`retrieve` on a case, as NumPy arrays; the kernel is interpreted."""

    def function(h, head, coarse_head):
        return retrieve(
            h, head, coarse_head, implementation=form, tiles=tiles if form == "mosaic_gpu" else None, **options
        )

    arguments = case.h, case.head, case.coarse_head
    if form != "mosaic_gpu":
        return jax.tree.map(np.asarray, jax.jit(function)(*arguments))
    result, races = interpret(function, *arguments)
    assert not races
    return jax.tree.map(np.asarray, result)


def kernel_scores(queries, coarse_head, tiles):
    """Scores [R, V and padding] and the best of each tile, from the interpreted kernel."""
    (scores, best), races = interpret(
        lambda queries, coarse_head: mosaic_gpu.coarse_scores(queries, coarse_head, tiles), queries, coarse_head
    )
    assert not races
    np.testing.assert_array_equal(best, np.max(scores, axis=-1))
    return np.asarray(scores).reshape(scores.shape[0], -1)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "sizes",
    [
        {"rows": 15, "vocabulary": 704, "hidden": 384},  # no tile divides them
        {"rows": 130, "vocabulary": 208, "hidden": 48},  # more rows than one call of the kernel takes
    ],
    ids=lambda sizes: "x".join(map(str, sizes.values())),
)
def test_ids_and_scores(sizes, form):
    case = cases.draw(**sizes)
    ids, scores = run(case, form, coarse=150, keep=16)
    want_ids, want_scores = cases.retrieved(case, coarse=150, keep=16)
    np.testing.assert_array_equal(ids, want_ids)
    assert_close("scores", scores, want_scores, FP32_OP)


@pytest.mark.parametrize("form", FORMS)
def test_the_lower_id_wins_every_tie(form):
    """Dozens of tokens tie at the edge of both selections, and whole tiles tie."""
    case = cases.draw_tied(rows=16, vocabulary=1800, hidden=64)
    coarse, keep = 24, 16
    edge = np.sort(cases.coarse_scores(case), axis=1)[:, -coarse]
    assert ((cases.coarse_scores(case) == edge[:, None]).sum(axis=1) > 5).all()
    ids, scores = run(case, form, coarse=coarse, keep=keep)
    want_ids, want_scores = cases.retrieved(case, coarse=coarse, keep=keep)
    np.testing.assert_array_equal(ids, want_ids)
    np.testing.assert_array_equal(scores, want_scores)


@pytest.mark.parametrize(
    ("rows", "tiles"),
    [
        (32, Tiles(consumers=2, stages=3, cluster=2, blocks=2)),
        (16, Tiles(consumers=3, stages=2, blocks=2)),
        (16, Tiles(consumers=4, stages=1, cluster=2, blocks=4)),
    ],
    ids=["2-3-2-2", "3-2-1-2", "4-1-2-4"],
)
def test_kernel_scores(rows, tiles):
    """All ways to share the work; tokens past the end score -inf."""
    vocabulary = 704
    case = cases.draw(rows=rows, vocabulary=vocabulary, hidden=384)
    queries, scale = jax.jit(split_queries)(case.h)
    scores = kernel_scores(queries, case.coarse_head, tiles)
    assert (scores[:, vocabulary:] == -np.inf).all()
    assert_rows_close(scores[:, :vocabulary] * np.asarray(scale)[:, None], cases.coarse_scores(case), E4M3_SPLIT)


@pytest.mark.parametrize(("rows", "hidden"), [(16, 5120), (64, 256), (128, 256)])
def test_kernel_scores_with_the_tiles_of_a_gpu(rows, hidden):
    """Once at the hidden size of the 27B pair."""
    tiles = dataclasses.replace(default_tiles(rows), blocks=2)
    vocabulary = 2 * tiles.tokens - TILE
    case = cases.draw(rows=rows, vocabulary=vocabulary, hidden=hidden)
    queries, scale = jax.jit(split_queries)(case.h)
    scores = kernel_scores(queries, case.coarse_head, tiles)[:, :vocabulary]
    assert_rows_close(scores * np.asarray(scale)[:, None], cases.coarse_scores(case), E4M3_SPLIT)


def test_a_lost_low_part_would_show():
    """The tolerance tells the split queries from their high parts alone."""
    case = cases.draw(rows=16, vocabulary=128, hidden=128)
    queries, scale = jax.jit(split_queries)(case.h)
    high = dataclasses.replace(case, h=queries[:16].astype(jnp.float32) * scale[:, None])
    with pytest.raises(AssertionError, match="relative rms"):
        assert_rows_close(cases.coarse_scores(high), cases.coarse_scores(case), E4M3_SPLIT)


@pytest.mark.parametrize("form", FORMS)
def test_a_row_of_nan_disturbs_no_other(form):
    """Its own ids stay in range."""
    case = cases.draw(rows=14, vocabulary=704, hidden=64)
    want_ids, want_scores = cases.retrieved(case, coarse=6, keep=4)
    ids, scores = run(dataclasses.replace(case, h=case.h.at[3].set(jnp.nan)), form, coarse=6, keep=4)
    rest = np.arange(14) != 3
    np.testing.assert_array_equal(ids[rest], want_ids[rest])
    assert_close("scores", scores[rest], want_scores[rest], FP32_OP)
    assert ((ids[3] >= 0) & (ids[3] < 704)).all()


@pytest.mark.parametrize("distinct", [1, 2, 5, 40, 10**6])
@pytest.mark.parametrize("tiles", [3, 31, 150])
def test_selection_equals_a_stable_sort(tiles, distinct):
    """From a vocabulary of one score to one without ties, with fewer tiles than tokens wanted and with more."""
    random = np.random.default_rng(tiles + distinct)
    scores = random.integers(-(distinct // 2), distinct - distinct // 2, size=(7, tiles * TILE)).astype(np.float32)
    scores[3] = -np.inf
    scores[4, : 2 * TILE] += distinct  # all winners in two tiles
    scores[:, -20:] = -np.inf  # past the end of the vocabulary
    tiled = jnp.asarray(scores).reshape(7, tiles, TILE)
    ids = jax.jit(best_tokens, static_argnums=2)(tiled, tiled.max(axis=-1), 31)
    np.testing.assert_array_equal(ids, cases.first(scores.astype(np.float64), 31))


def test_split_queries():
    """Two float8 numbers and a power of two give back bfloat16, up to 2^-10 of the scale."""
    random = np.random.default_rng(5)
    h = random.normal(size=(200, 64)) * np.exp2(random.uniform(-80, 80, size=(200, 1)))
    h[7] = 0
    h = jnp.asarray(h, jnp.float32).astype(jnp.bfloat16)
    queries, scale = jax.jit(split_queries)(h)
    queries, scale, h = (np.asarray(x.astype(jnp.float32)).astype(np.float64) for x in (queries, scale, h))
    high, low = np.split(queries, 2)
    assert (np.frexp(scale)[0] == 0.5).all()
    largest = np.abs(h).max(axis=1) / scale
    assert ((largest >= 224) & (largest < 448) | (largest == 0)).all()
    error = np.abs((high + low) - h / scale[:, None])
    assert (error <= 2.0**-10).all()
    assert (error[np.abs(h / scale[:, None]) >= 0.25] == 0).all()


def test_tiles_fit():
    for rows in ROWS:
        for tiles in (default_tiles(rows), *candidate_tiles(rows)):
            deeper = Tiles(consumers=tiles.consumers, stages=tiles.stages + 1, cluster=tiles.cluster)
            assert tiles.shared_memory(rows) <= architecture().shared_memory_bytes < deeper.shared_memory(rows)
        assert default_tiles(rows) in candidate_tiles(rows)


@pytest.mark.parametrize("program", PROGRAMS[:1], ids=str)
def test_the_compiled_program_sorts_no_vocabulary_and_copies_no_head(program):
    hlo = compile_program(program).hlo
    sorted_lengths = {int(length) for length in re.findall(r"\(f32\[15,(\d+)\][^)]*\) sort\(", hlo)}
    assert len(sorted_lengths) == 3 and max(sorted_lengths) == 128 * TILE
    entry = hlo[hlo.index("ENTRY") :]
    assert "[15,128,5120]" not in entry  # the gathered rows exist inside a loop only
    assert hlo.count(" sort(") == 3 and "TopK" not in hlo


def test_errors_say_what_is_wrong():
    case = cases.draw(rows=4, vocabulary=100, hidden=40)
    with pytest.raises(ValueError, match="keep is 17, wanted 1 to 10"):
        retrieve(case.h, case.head, case.coarse_head, coarse=10, keep=17)
    with pytest.raises(ValueError, match=r"h is \(4, 39\) and the head \(100, 40\)"):
        retrieve(case.h[:, 1:], case.head, case.coarse_head)
    with pytest.raises(ValueError, match="make it from this head"):
        retrieve(case.h, case.head, quantize_head(case.head[1:]))
    tiles = Tiles(consumers=2, stages=20)
    with pytest.raises(ValueError, match=r"h is float32.*size is 40.*100 tokens.*bytes of shared memory"):
        retrieve(case.h.astype(jnp.float32), case.head, case.coarse_head, implementation="mosaic_gpu", tiles=tiles)


def assert_rows_close(got, want, bound):
    """The rule for each query on its own: their lengths differ."""
    for row, (got_row, want_row) in enumerate(zip(got, want, strict=True)):
        assert_close(f"row {row}", got_row, want_row, bound)
