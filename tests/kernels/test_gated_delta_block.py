"""A block of a gated delta layer from its projections on, in every implementation: one body, against float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.gated_delta import gated_delta_block, mosaic_inputs
from tests.kernels.gated_delta_block_cases import BlockCase, case
from tests.kernels.gated_delta_block_programs import PROGRAMS
from tests.kernels.interpreter import interpret
from tests.kernels.machine_code import compile_program
from tests.kernels.planted import nothing, planted
from tests.kernels.planted_outcome import late_copies, outcome
from tests.quick_jit import jit
from tests.tolerances import BF16_OP, FP32_OP, assert_close

pytestmark = pytest.mark.kernels


def run(block: BlockCase, implementation):
    call = functools.partial(gated_delta_block, key_heads=block.key_heads, implementation=implementation)
    if implementation != "mosaic_gpu":
        return jit(call)(*block.arguments)
    results, races = interpret(call, *block.arguments)
    assert not races
    return results


def check(block: BlockCase, implementation):
    rows = block.o.shape[1]
    o, state, records, conv = run(block, implementation)
    assert_close("o", o, block.o, BF16_OP)
    assert_close("state", state, block.state, FP32_OP)
    assert_close("keys", records.k[:, :rows], block.k, BF16_OP)
    assert_close("deltas", records.d[..., :rows], block.d, BF16_OP)
    assert_close("decays", records.g[:, :rows], block.g, FP32_OP)
    assert (records.k.shape, records.d.shape, records.g.shape) == jax.tree.map(
        lambda x: x.shape, (block.arguments[7].k, block.arguments[7].d, block.arguments[7].g)
    )
    before, accepted = block.arguments[8], block.arguments[9]
    for slot, start in enumerate(np.asarray(accepted)):
        np.testing.assert_array_equal(conv[slot, :3], before[slot, start : start + 3])
        np.testing.assert_array_equal(conv[slot, 3 : 3 + rows], block.arguments[0][slot])
        if not start:
            np.testing.assert_array_equal(state[slot], block.arguments[6][slot])


@pytest.mark.parametrize("implementation", ["reference", "xla", "mosaic_gpu"])
def test_equals_float64(implementation):
    """A slot that accepted nothing, one with padding rows, one that accepted all."""
    check(case(1, accepted=(0, 5, 16), length=(16, 9, 16)), implementation)


@pytest.mark.parametrize("implementation", ["xla", "mosaic_gpu"])
def test_a_narrow_block(implementation):
    check(case(2, accepted=(3,), length=(5,), rows=5, key_heads=2), implementation)


def test_forms_round_alike():
    """Convolution and SiLU are rounded at the same places, so what differs is the order of float32 sums."""
    block = case(3, accepted=(7,), length=(16,))
    kernel, xla = run(block, "mosaic_gpu"), run(block, "xla")
    assert_close("keys", kernel[2].k, xla[2].k, BF16_OP / 10)
    assert_close("decays", kernel[2].g, xla[2].g, FP32_OP)


def inputs_alone():
    """The first of the two kernels, whose races the second one's would hide: call, arguments, keys, bound."""
    block = case(4, accepted=(16,), length=(16,))

    def keys(mixed, a, b, taps, a_log, dt_bias, _, records, conv, accepted, length):
        conv_ref, keys_ref, decays_ref = (jax.new_ref(cache) for cache in (conv, records.k, records.g))
        rows = mixed, a, b, taps, a_log, dt_bias, accepted, length
        mosaic_inputs.replay_inputs(*rows, conv_ref, keys_ref, decays_ref, key_heads=1)
        return jax.freeze(keys_ref)

    return keys, block.arguments, block.k, BF16_OP


def test_no_race_in_three_runs():
    for _ in range(3):
        assert outcome(*inputs_alone()) == "right"


@pytest.mark.parametrize("missing", ["commit_smem", "wait_smem_to_gmem"])
def test_a_planted_bug_shows(missing):
    with planted(mosaic_inputs, **{missing: nothing}):
        assert outcome(*inputs_alone()) != "right"


@pytest.mark.parametrize("wait", [True, False])
def test_the_loads_are_awaited(wait):
    with late_copies(mosaic_inputs, wait=wait):
        assert (outcome(*inputs_alone()) == "right") == wait


def test_every_reason_is_named():
    mixed, a, b, taps, *others = case(5, accepted=(0,), length=(16,)).arguments
    call = functools.partial(gated_delta_block, key_heads=1, implementation="mosaic_gpu")
    with pytest.raises(ValueError, match=r"mixed is float32.*the convolution has 3 taps.*the device is no GPU"):
        call(mixed.astype(jnp.float32), a, b, taps[:, 1:], *others)


def test_every_cache_is_changed_in_place():
    program = PROGRAMS[0]
    code = compile_program(program)
    assert code.alias_bytes == sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(program.shapes[0]))
    entry = code.hlo[code.hlo.index("\nENTRY") :]
    assert " copy(" not in entry and " fusion(" not in entry, entry
