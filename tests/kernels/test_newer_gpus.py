"""The kernels on GPUs without wgmma: the same numbers from `mma`, no races, and planted bugs that must not pass.

B200 has as much shared memory per block as Hopper, a workstation's Blackwell less than half of it.
"""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels import block_attention, gated_delta, projection, retrieval, tail
from pallas_kernels.bridge import bridge
from pallas_kernels.device import architecture, gpu_obstacle
from pallas_kernels.gated_delta import mosaic_replay
from pallas_kernels.matrix_unit import Mma, Wgmma, matrix_unit, mma
from pallas_kernels.projection.mosaic_gpu import projections
from pallas_kernels.projection.tiles import STEP
from pallas_kernels.shared_memory import tiled
from tests.kernels import (
    block_attention_cases,
    gated_delta_block_cases,
    gated_delta_prefill_cases,
    gated_delta_replay_cases,
    projection_cases,
    retrieval_cases,
)
from tests.kernels.bridge_cases import EPS, BridgeCase
from tests.kernels.interpreter import BLACKWELL, HOPPER, WORKSTATION, gpu, interpret, interpreting
from tests.kernels.planted import nothing, planted
from tests.kernels.tail_cases import TailCase
from tests.tolerances import BF16_ATTENTION, BF16_OP, FP32_OP, FP32_PREFILL, FP32_REPLAY, assert_close

pytestmark = pytest.mark.kernels
BF16, E4M3 = jnp.bfloat16, jnp.float8_e4m3fn
every_gpu = pytest.mark.parametrize("kind", [BLACKWELL, WORKSTATION])


def run(kind, function, *arguments, **options):
    """The results of the kernel, which must not race."""
    call = functools.partial(function, implementation="mosaic_gpu", **options)
    with gpu(kind):
        with interpreting():
            assert "wgmma" not in str(jax.make_jaxpr(call)(*arguments))
        results, races = interpret(call, *arguments)
    assert not races
    return results


@pytest.mark.parametrize(
    ("kind", "unit", "kibibytes"), [(HOPPER, Wgmma(), 227), (BLACKWELL, Mma(), 227), (WORKSTATION, Mma(), 99)]
)
def test_what_a_gpu_multiplies_with(kind, unit, kibibytes):
    with gpu(kind), interpreting():
        assert matrix_unit() == unit
        assert architecture().shared_memory_bytes == kibibytes * 1024
        assert gpu_obstacle() is None


@pytest.mark.parametrize(
    ("capability", "products", "kibibytes"),
    [("9.0", "wgmma", 227), ("10.0", "mma", 227), ("10.3", "mma", 227), ("12.1", "mma", 99), ("13.0", "mma", 99)],
)
def test_a_gpu_that_is_here_states_what_it_can(monkeypatch, capability, products, kibibytes):
    monkeypatch.setattr(jax, "devices", lambda: [stating(capability)])
    assert gpu_obstacle() is None
    assert (architecture().products, architecture().shared_memory_bytes) == (products, kibibytes * 1024)


def test_an_older_or_unknown_gpu_gets_no_kernel(monkeypatch):
    monkeypatch.setattr(jax, "devices", lambda: [stating("8.9")])
    assert gpu_obstacle() == "the GPU is 'NVIDIA X1' with compute capability 8.x, wanted 9.0 or newer"
    with gpu("NVIDIA H300"), interpreting():
        assert "'NVIDIA H300', whose compute capability is not known" in str(gpu_obstacle())


def stating(capability):
    """A device as jax describes it."""
    return types.SimpleNamespace(platform="gpu", device_kind="NVIDIA X1", compute_capability=capability)


@pytest.mark.parametrize(
    ("dtype", "rows", "columns", "transposed"),
    [(dtype, *sizes, True) for dtype in (BF16, E4M3) for sizes in ((16, 96), (32, 48), (64, 8), (64, 72))]
    + [(BF16, rows, 96, False) for rows in (16, 64)],
)
def test_products(dtype, rows, columns, transposed):
    """Two pairs, K longer than a line of shared memory, columns in more than one piece."""
    depth = 256
    rng = np.random.default_rng(columns)
    left, right = (jnp.asarray(rng.normal(size=(2, *shape)), dtype) for shape in ((rows, depth), (columns, depth)))
    operand = right if transposed else right.mT

    def products(a_g, b_g, out_g, a_s, b_s, out_s, loaded):
        plgpu.copy_gmem_to_smem(a_g, a_s, loaded)
        plgpu.copy_gmem_to_smem(b_g, b_s, loaded)
        plgpu.barrier_wait(loaded)
        pairs = [(a_s.at[i], b_s.at[i].T if transposed else b_s.at[i]) for i in range(2)]
        total = Mma().multiply(*pairs)
        out_s[...] = Mma().add(total, *pairs[0])
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(out_s, out_g)
        plgpu.wait_smem_to_gmem(0)

    def call(a, b):
        line = 128 if transposed else 64
        return plgpu.kernel(
            products,
            out_type=jax.ShapeDtypeStruct((rows, columns), jnp.float32),
            scratch_types=[
                tiled(dtype, 128, *a.shape),
                tiled(dtype, line, *b.shape),
                plgpu.SMEM((rows, columns), jnp.float32),
                plgpu.Barrier(num_arrivals=2),
            ],
        )(a, b)

    with gpu(BLACKWELL):
        got, races = interpret(call, left, operand)
    assert not races
    a, b = np.asarray(left, np.float64), np.asarray(right, np.float64)
    assert_close("sum", got, 2 * a[0] @ b[0].T + a[1] @ b[1].T, FP32_OP)


@every_gpu
@pytest.mark.parametrize("kind_of_call", projection_cases.KINDS)
@pytest.mark.parametrize("rows", [16, 24, 72])
def test_projections(kind, kind_of_call, rows):
    """One product for all rows, where 16 or 32 will do; and two warpgroups."""
    case = projection_cases.KINDS[kind_of_call](rows, rows=rows, depth=6 * STEP, outputs=128)
    shares = 1 if kind_of_call in ("several", "gated") else 2
    tiles = projection.Tiles(columns=64, shares=shares, stages=2)
    for got, want in zip(
        case.results(run(kind, case.function, *case.arguments, tiles=tiles)), case.expected, strict=True
    ):
        assert_close("result", got, want, BF16_OP)


@pytest.mark.parametrize(("kind", "rows", "stages"), [(BLACKWELL, 15, 2), (BLACKWELL, 70, 2), (WORKSTATION, 15, 1)])
def test_retrieval(kind, rows, stages):
    """Also of more rows than one launch takes; ties go to the lowest token."""
    case = retrieval_cases.draw_tied(rows=rows, vocabulary=704, hidden=256)
    tiles = retrieval.Tiles(consumers=2, stages=stages, blocks=2)
    ids, scores = run(kind, retrieval.retrieve, case.h, case.head, case.coarse_head, tiles=tiles, coarse=128, keep=16)
    want_ids, want_scores = retrieval_cases.retrieved(case, coarse=128, keep=16)
    np.testing.assert_array_equal(ids, want_ids)
    np.testing.assert_array_equal(scores, want_scores)


def test_the_bridge():
    case = BridgeCase.draw(1, slots=2, block_rows=16, hidden=256, code=128, message=128)
    x, r, c = run(BLACKWELL, bridge, *case.arguments, eps=EPS)
    want_x, want_r, want_c = case.expected()
    assert_close("x", x, want_x, BF16_OP)
    assert_close("r", r, want_r, FP32_OP)
    assert_close("c", c, want_c, FP32_OP)


def test_the_tail():
    case = TailCase.draw(3, slots=2, positions=3, hidden=128, code=128, message=128)
    scores = run(BLACKWELL, tail.tail_scores, *case.arguments, eps=EPS)
    assert_close("scores", scores, case.expected(), FP32_OP)


@every_gpu
def test_attention_over_pages(kind):
    """The target's heads, with the tiles that a GPU gets: the output stays in its registers."""
    sizes = block_attention_cases.Sizes(before=(120, 0), rows=16, heads=6, kv_heads=1, head_dim=256)
    operands, expected = block_attention_cases.paged_case(1, sizes, page=64, pages=3, dtype=jnp.bfloat16)
    gate, expected = block_attention_cases.gate_case(2, expected, jnp.bfloat16)
    # Traced as an argument, as the operands are.
    output = run(kind, lambda *a, **o: block_attention.paged_block_attention(*a[:-1], gate=a[-1], **o), *operands, gate)
    assert_close("output", output, expected, BF16_ATTENTION)


@every_gpu
def test_attention_over_the_ring(kind):
    sizes = block_attention_cases.Sizes(before=(0, 1000), rows=16, heads=4, kv_heads=1, head_dim=128)
    operands, expected = block_attention_cases.ring_case(
        2, sizes, ring=144, window=128, causal=True, dtype=jnp.bfloat16
    )
    output = run(kind, block_attention.ring_block_attention, *operands, window=128, causal=True)
    assert_close("output", output, expected, BF16_ATTENTION)


@every_gpu
def test_a_gated_delta_block(kind):
    block = gated_delta_block_cases.case(1, accepted=(0, 5, 16), length=(16, 9, 16))
    o, state, records, _ = run(kind, gated_delta.gated_delta_block, *block.arguments, key_heads=block.key_heads)
    assert_close("o", o, block.o, BF16_OP)
    assert_close("state", state, block.state, FP32_OP)
    assert_close("deltas", records.d, block.d, BF16_OP)
    np.testing.assert_array_equal(state[0], block.arguments[6][0])


def test_a_prompt_through_a_gated_delta_layer():
    wanted = gated_delta_prefill_cases.case(40, seed=1, key_heads=2, value_heads=6, value_dim=128)
    o, state = run(BLACKWELL, gated_delta.gated_delta_prefill, *wanted.arguments)
    assert_close("o", o, wanted.o, FP32_PREFILL)
    assert_close("state", state, wanted.state, FP32_PREFILL)


@pytest.mark.parametrize(("kind", "stages"), [(BLACKWELL, 2), (WORKSTATION, 1)])
def test_a_replay_in_several_tiles(kind, stages):
    """As many in shared memory as fit; hard inputs, since sums are made in another order than on Hopper."""
    changes = gated_delta_replay_cases.HARD
    wanted = gated_delta_replay_cases.case((16, 5, 9, 16, 12), seed=3, value_heads=2, changes=changes)
    tiles = mosaic_replay.Tiles(per_block=4, stages=stages)
    with gpu(kind), interpreting():
        assert tiles in mosaic_replay.candidate_tiles(value_heads=2, key_heads=1, value_dim=128)
    o, state, records = run(kind, gated_delta.gated_delta_replay, *wanted.arguments, tiles=tiles)
    for slot in range(len(changes)):
        assert_close("o", o[slot], wanted.o[slot], FP32_REPLAY)
        assert_close("state", state[slot], wanted.state[slot], FP32_REPLAY)
        assert_close("deltas", records.d[slot], wanted.d[slot], FP32_REPLAY)


def test_what_does_not_fit_is_said():
    prefill = gated_delta_prefill_cases.case(40, seed=1, value_dim=128, key_dim=128)
    replay = gated_delta_replay_cases.case((9,), seed=1, value_heads=2)
    two_stages = {"tiles": mosaic_replay.Tiles(per_block=4, stages=2)}
    for function, case, options in (
        (gated_delta.gated_delta_prefill, prefill, {}),
        (gated_delta.gated_delta_replay, replay, two_stages),
    ):
        with pytest.raises(ValueError, match="101376"):
            run(WORKSTATION, function, *case.arguments, **options)


def a_projection():
    """Not by the public function, which is traced once."""
    tiles = projection.Tiles(columns=64, shares=1, stages=2)
    case = projection_cases.several(1, rows=16, depth=6 * STEP, outputs=(128,))
    return lambda x, weight: projections(x, [weight], tiles), case.arguments


def a_retrieval():
    case = retrieval_cases.draw(rows=15, vocabulary=704, hidden=384)
    tiles = retrieval.Tiles(consumers=2, stages=2, blocks=2)
    call = functools.partial(retrieval.retrieve, tiles=tiles, coarse=128, keep=16, implementation="mosaic_gpu")
    return call, (case.h, case.head, case.coarse_head)


@pytest.mark.parametrize("kernel", [a_projection, a_retrieval])
def test_a_forgotten_fence_shows(kernel):
    """Copies overwrite what products still read."""
    call, arguments = kernel()
    with gpu(BLACKWELL):
        assert not interpret(call, *arguments)[1]
        with planted(mma, commit_smem=nothing):
            assert interpret(call, *arguments)[1]


def test_shares_of_columns_have_to_be_even():
    """Four warps share the columns of 16 rows, two those of 32."""
    unit = Mma()
    assert [unit.block_rows(16, (n,)) for n in (64, 48, 40)] == [16, 32, 64]
    assert [unit.block_rows(rows, (64,)) for rows in (1, 17, 33)] == [16, 32, 64]
    assert [unit.columns_step(rows) for rows in (16, 32, 64)] == [32, 16, 8]
