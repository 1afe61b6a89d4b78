"""What attention reads, made from projections: every implementation against float64, races and planted bugs."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.attention_inputs import Heads, api, mosaic_gpu, rotate_and_store, rotate_heads
from pallas_kernels.rope import Rope
from pallas_kernels.row_norm import RowNorm
from tests.kernels.attention_inputs_cases import CACHE_ROWS, DRAFTER, SMALL, TARGET, case
from tests.kernels.attention_inputs_programs import PROGRAMS
from tests.kernels.interpreter import interpret, interpreting
from tests.kernels.machine_code import compile_program
from tests.kernels.planted import nothing, planted
from tests.kernels.planted_outcome import late_copies, outcome
from tests.quick_jit import jit
from tests.tolerances import BF16_OP, FP32_ROPE, assert_close

pytestmark = pytest.mark.kernels
FORMS = [("reference", jnp.float32), ("xla", jnp.float32), ("xla", jnp.bfloat16), ("mosaic_gpu", jnp.bfloat16)]
# Start, kept rows and rows of each slot: padding rows; rows that do not fill the last group of 16; one row.
SPANS = {"padded": ((120, 7), (16, 3), 16), "odd": ((0, 250, 31), (5, 1, 0), 5), "one": ((300,), (1,), 1)}


def run(function, implementation, *arguments):
    """The result; a kernel must not race."""
    *arrays, rope = arguments
    call = functools.partial(function, implementation=implementation)
    if implementation != "mosaic_gpu":
        return jit(lambda *a: call(*a, rope))(*arrays)
    results, races = interpret(lambda *a: call(*a, rope), *arrays)
    assert not races
    return results


@pytest.mark.parametrize("span", SPANS)
@pytest.mark.parametrize("sizes", [TARGET, DRAFTER, SMALL], ids=["target", "drafter", "small"])
@pytest.mark.parametrize(("implementation", "dtype"), FORMS)
def test_equals_float64(implementation, dtype, sizes, span):
    start, kept, rows = SPANS[span]
    wanted = case(rows, sizes, start, kept, rows=rows, dtype=dtype)
    bound = FP32_ROPE if dtype == jnp.float32 else BF16_OP
    (q,), k_cache, v_cache = run(rotate_and_store, implementation, *wanted.arguments)
    valid = np.isfinite(wanted.q)
    assert q.dtype == k_cache.dtype == dtype and q.shape == wanted.q.shape
    assert_close("queries", np.asarray(q)[valid], wanted.q[valid], bound)
    assert np.isnan(q[~valid]).all()  # a padding row stays in its row
    assert_close("keys", k_cache, wanted.k_cache, bound)
    np.testing.assert_array_equal(v_cache, wanted.v_cache)
    at = np.asarray(wanted.arguments[5])
    others = np.setdiff1d(np.arange(CACHE_ROWS), at)
    np.testing.assert_array_equal(k_cache[others], wanted.arguments[3][others])


@pytest.mark.parametrize(("implementation", "dtype"), FORMS)
def test_without_a_cache(implementation, dtype):
    """The same heads as with one."""
    projections, keys, _, *_, positions, rope = case(3, DRAFTER, (9, 4), (16, 16), rows=16, dtype=dtype).arguments
    wanted = case(3, DRAFTER, (9, 4), (16, 16), rows=16, dtype=dtype)
    q, k = run(rotate_heads, implementation, [*projections, keys], positions, rope)
    bound = FP32_ROPE if dtype == jnp.float32 else BF16_OP
    assert_close("queries", q, wanted.q, bound)
    assert_close("keys", k, wanted.k_cache[np.asarray(wanted.arguments[5])], bound)


def test_without_queries():
    wanted = case(4, DRAFTER, (9, 4), (16, 2), rows=16, dtype=jnp.bfloat16)
    heads, k_cache, v_cache = run(rotate_and_store, "mosaic_gpu", [], *wanted.arguments[1:])
    assert heads == ()
    assert_close("keys", k_cache, wanted.k_cache, BF16_OP)
    np.testing.assert_array_equal(v_cache, wanted.v_cache)


def keys_of_one():
    """Call, arguments, the keys' cache and its bound, for `outcome`; not the public function, which is traced once."""
    wanted = case(5, TARGET, (30,), (16,), rows=16, dtype=jnp.bfloat16)
    *arrays, rope = wanted.arguments
    store = inspect.unwrap(api._rotate_and_store)
    return lambda *a: store(*a, rope=rope)[1], tuple(arrays), wanted.k_cache, BF16_OP


def test_no_race_in_three_runs():
    for _ in range(3):
        assert outcome(*keys_of_one()) == "right"


@pytest.mark.parametrize("missing", ["commit_smem", "wait_smem_to_gmem"])
def test_a_planted_bug_shows(missing):
    with planted(mosaic_gpu, **{missing: nothing}):
        assert outcome(*keys_of_one()) != "right"


@pytest.mark.parametrize("wait", [True, False])
def test_the_loads_are_awaited(wait):
    with late_copies(mosaic_gpu, wait=wait):
        assert (outcome(*keys_of_one()) == "right") == wait


def test_the_caches_are_changed_in_place():
    program = PROGRAMS[0]
    code = compile_program(program)
    assert code.alias_bytes == sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(program.shapes[0]))
    assert " copy(" not in code.hlo


def test_every_reason_is_named():
    (queries,), keys, values, k_cache, v_cache, at, positions, _ = case(
        6, DRAFTER, (0,), (1,), rows=1, dtype=jnp.float32
    ).arguments
    reasons = r"keys is float32.*96 of 128 dimensions of keys are rotated.*v_cache is float32.*the device is no GPU"
    with pytest.raises(ValueError, match=reasons):
        rotate_and_store([], keys, values, k_cache, v_cache, at, positions, Rope(96, 1e4), implementation="mosaic_gpu")
    short = Heads(keys.rows, RowNorm(keys.norm.weight[:64], 1e-6, "plain"), 2, 64)
    with interpreting(), pytest.raises(ValueError, match=r"heads of \[64, 128\] in one call, wanted one length"):
        rotate_heads([queries, short], positions, Rope(64, 1e4), implementation="mosaic_gpu")
    wide = Heads(jnp.zeros((1, 1, 129), jnp.bfloat16), queries.norm, 1, 128)
    with interpreting(), pytest.raises(ValueError, match="rows of 129, wanted a multiple of 8"):
        rotate_heads([wide], positions, Rope(64, 1e4), implementation="mosaic_gpu")


def test_shapes_that_do_not_fit_together_are_refused():
    (query,), keys, values, k_cache, v_cache, at, positions, rope = case(
        7, DRAFTER, (0,), (2,), rows=2, dtype=jnp.float32
    ).arguments
    with pytest.raises(ValueError, match=r"projections\[0\] is \(1, 2, 512\), wanted \(1, 2\) rows.* 5 heads of 128"):
        rotate_heads([Heads(query.rows, query.norm, 5, 128)], positions, rope)
    with pytest.raises(ValueError, match=r"the norm's weight of projections\[0\] is None, wanted \(128,\)"):
        rotate_heads([Heads(query.rows, None, 4, 128)], positions, rope)
    with pytest.raises(
        ValueError, match=r"130 dimensions of projections\[0\] are to be rotated, wanted an even number up to 128"
    ):
        rotate_heads([query], positions, Rope(130, 1e4))
    with pytest.raises(ValueError, match="no projection, wanted"):
        rotate_heads([], positions, rope)
    with pytest.raises(ValueError, match=r"values is .*, wanted .*v_cache is .*, wanted .*at is \(1, 1\)"):
        rotate_and_store([query], keys, values[..., 1:], k_cache, v_cache[:, :, 1:], at[:, :1], positions, rope)
