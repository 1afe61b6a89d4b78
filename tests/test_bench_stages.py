"""The stages are the cycle: run in turn, they leave the state that a whole cycle leaves. And forced cycles."""

import jax
import numpy as np
import pytest

from dspine_jax import loop
from dspine_jax.request import check_requests
from dspine_jax.sampling import SamplingParams
from dspine_jax.sampling.width import Verification
from serve.benchmark import stages
from serve.benchmark.acceptance import compare_ways
from serve.benchmark.forced import Forced
from serve.benchmark.ways import Way
from tests.two_layers import BLOCK, TARGET, two_layer_pair

PROMPTS = [[3, 1, 4, 1, 5], [9] * 40]


@pytest.mark.parametrize(
    ("params", "how"),
    [
        (SamplingParams(), Verification()),
        (SamplingParams(temperature=1.0, seed=5), Verification("block", (4,))),
    ],
    ids=["greedy", "a narrow sampled block"],
)
def test_stages_in_turn_are_a_cycle(params, how):
    pair = two_layer_pair()
    batch = check_requests(TARGET, PROMPTS, 40, (), (params,) * 2)
    way = Way(pair, "speculative", how)
    plan, weights, width = pair.plan, pair.weights, how.widths[0] if how.widths else BLOCK
    whole = way.start(batch)
    ours = jax.tree.map(lambda x: x.copy(), whole)
    for _ in range(2):
        states = stages.draft(plan, weights, ours)
        found = stages.candidates(plan, weights, states)
        tokens, drawn = stages.tail(plan, weights, ours, states, found, width=width)
        ours, verified = stages.verify(plan, how, weights, ours, tokens, drawn)
        ours = stages.commit(plan, weights, ours, verified)
        whole = loop.run_cycle(plan, weights, whole, how)
    for name in ("anchor", "position", "emitted", "cycles", "target_rows"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(whole, name), err_msg=name)
    for slot, count in enumerate(np.asarray(whole.emitted)):
        np.testing.assert_array_equal(ours.tokens[slot, :count], whole.tokens[slot, :count])
    for got, want in zip(jax.tree.leaves(ours.draft_cache), jax.tree.leaves(whole.draft_cache), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_every_stage_is_timed():
    pair = two_layer_pair()
    batch = check_requests(TARGET, PROMPTS, 40, ())
    found = stages.measure(Way(pair, "speculative"), Way(pair, "plain"), batch, calls=2)
    assert tuple(found.stages) == stages.STAGES
    assert all(time.low > 0 for time in (*found.stages.values(), found.cycle, found.plain_step))


def test_forced_cycles_accept_what_they_are_told():
    """Always three: 40 tokens are one from the prompt, nine cycles of four, and one that the limit cuts to three."""
    batch = check_requests(TARGET, PROMPTS, 40, ())
    way = Way(two_layer_pair(), "speculative", Forced(shares=(0, 0, 0, 1)))
    found = compare_ways("full", way, way, [batch], None, forced=True)
    assert found.histogram == (0, 0, 0, 20, *[0] * (BLOCK - 4))
    assert (found.cycles, found.tokens) == (20, 78)
    assert found.forced and found.same_tokens is None
