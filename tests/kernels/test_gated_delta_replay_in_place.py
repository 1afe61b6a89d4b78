"""Inside a larger program the replay kernel changes donated states where they lie."""

import re

import jax
import jax.numpy as jnp
import pytest

from pallas_kernels.gated_delta import Records, gated_delta_replay
from tests.kernels.gated_delta_replay_programs import shapes
from tests.kernels.machine_code import Program, compile_program

pytestmark = pytest.mark.kernels

LAYERS = 3


def cycles(states, records, accepted, q, k, v, g, beta):
    """A loop over blocks as decoding runs it, each block through three layers."""

    def cycle(carry):
        step, states, records, accepted, v = carry
        new_states, new_records = [], []
        for state, record in zip(states, records, strict=True):
            v, state, record = gated_delta_replay(
                state, record, accepted, q, k, v, g, beta, implementation="mosaic_gpu"
            )
            new_states.append(state)
            new_records.append(record)
        return step + 1, tuple(new_states), tuple(new_records), (accepted + step) % 17, v

    carry = jnp.int32(0), states, records, accepted, v
    return jax.lax.while_loop(lambda carry: carry[0] < 5, cycle, carry)[1:]


def test_states_are_not_copied():
    state, records, *rest = shapes(1)
    assert isinstance(records, Records)
    program = Program(
        op="gated_delta_replay",
        label="in a loop",
        function=cycles,
        shapes=((state,) * LAYERS, (records,) * LAYERS, *rest),
        donate=(0,),
        bytes_moved=0,
    )
    code = compile_program(program)
    size = "f32[" + ",".join(map(str, state.shape)) + "]"
    copies = [line for line in code.hlo.splitlines() if re.search(r" copy(-start)?\(", line) and size in line]
    assert copies == []
    assert code.alias_bytes == LAYERS * 4 * state.size
    assert len({kernel.name for kernel in code.kernels}) == len(code.kernels) == 1, "lowered once for all layers"
