"""What a cycle tells the host, and what is made of it."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from serve.engine.config import EngineConfig
from serve.engine.device import empty_state
from serve.engine.events import Origin, origins_of
from serve.engine.report import pack, unpack
from tests.copying import copying_pair

DRAFT, CORRECTION, BONUS = Origin.DRAFT, Origin.CORRECTION, Origin.BONUS


@pytest.mark.parametrize(
    ("prompt", "count", "accepted", "want"),
    [
        (0, 1, 0, [CORRECTION]),
        (0, 3, 2, [DRAFT, DRAFT, CORRECTION]),
        (0, 4, 3, [DRAFT, DRAFT, DRAFT, BONUS]),
        (0, 2, 3, [DRAFT, DRAFT]),  # cut by a stop id or a limit
        (1, 0, 0, [BONUS]),  # the token after the prompt ended the request
        (1, 2, 1, [BONUS, DRAFT, CORRECTION]),
        (0, 0, 0, []),
    ],
)
def test_origins(prompt, count, accepted, want):
    assert origins_of(prompt, count, accepted, width=4) == tuple(want)


@pytest.mark.parametrize("best", [0, 3])
def test_a_report_says_what_the_state_says(best):
    room, slots = 6, 3
    state = empty_state(copying_pair(), EngineConfig(context=64, slots=slots, max_logprobs=best), room)
    rng = np.random.default_rng(0)
    tokens, top_ids = rng.integers(0, 96, (slots, room)), rng.integers(0, 96, (slots, room, best))
    chosen, top = rng.normal(size=(slots, room)).astype(np.float32), rng.normal(size=(slots, room, best))
    chosen[1, 0], top = -np.inf, top.astype(np.float32)
    assert state.logprobs is not None
    state = dataclasses.replace(
        state,
        tokens=jnp.asarray(tokens, jnp.int32),
        emitted=jnp.asarray([0, 4, 6], jnp.int32),
        limit=jnp.asarray([1, 9, 6], jnp.int32),
        accepted=jnp.asarray([[7], [3], [5]], jnp.int32),
        stopped=jnp.asarray([False, False, True]),
        failed=jnp.asarray([True, False, False]),
        logprobs=dataclasses.replace(
            state.logprobs,
            tokens=jnp.asarray(chosen),
            top_ids=jnp.asarray(top_ids, jnp.int32),
            top=jnp.asarray(top),
        ),
    )
    report = np.asarray(pack(state, jnp.asarray([False, True, True])))
    assert report.dtype == np.int32
    lanes = [unpack(row, room, best) for row in report]
    assert [lane.accepted for lane in lanes] == [0, 3, 5]  # of a slot that did not run the number means nothing
    assert [(lane.ran, lane.stopped, lane.failed, lane.done) for lane in lanes] == [
        (False, False, True, True),
        (True, False, False, False),
        (True, True, False, True),
    ]
    for slot, (lane, count) in enumerate(zip(lanes, (0, 4, 6), strict=True)):
        np.testing.assert_array_equal(lane.tokens, tokens[slot, :count])
        np.testing.assert_array_equal(lane.logprobs.tokens, chosen[slot, :count])
        np.testing.assert_array_equal(lane.logprobs.top_ids, top_ids[slot, :count])
        np.testing.assert_array_equal(lane.logprobs.top, top[slot, :count])
