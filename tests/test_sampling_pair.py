"""Sampling with real models: the joint law of a continuation against exact enumeration, and logprobs.

A tiny random pair with a small vocabulary; its caches are made as small as the requests, so that thousands of them
run at once.
"""

import itertools
import sys

import numpy as np
import pytest

import dspine_jax.request
from dspine_jax import SamplingParams, build_pair, generate, generate_plain
from dspine_jax.sampling.logprobs import Logprobs
from serve.comparison import next_scores
from tests.markov import joint_p_value, reference_law, two_sample_p_value
from tests.tiny import random_drafter, random_target, tiny_drafter_config, tiny_target_config
from tests.tolerances import FP32_LOGITS, assert_close

SLOTS, VOCAB, DRAWS, ALPHA = 2048, 6, 20_000, 1e-3
PROMPT = [2, 5, 0]
LAWS = [
    {"temperature": 1.0, "top_k": 5, "top_p": 0.95, "min_p": 0.05},
    {"temperature": 1.5},
]


@pytest.fixture(scope="module", autouse=True)
def small_buckets():
    sizes = {"MAX_BATCH": SLOTS, "MIN_CAPACITY": 16, "MIN_TOKENS": 8, "PAGE": 16}
    with pytest.MonkeyPatch.context() as patch:
        for name, size in sizes.items():
            patch.setattr(dspine_jax.request, name, size)
        # The package's attribute of this name is the function.
        patch.setattr(sys.modules["dspine_jax.generate"], "PREFILL_CHUNK", 8)
        yield


@pytest.fixture(scope="module")
def pair():
    target = tiny_target_config(
        vocab_size=VOCAB,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=3,
        layer_types=("linear_attention", "full_attention", "linear_attention"),
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=4,
        linear_num_key_heads=1,
        linear_num_value_heads=2,
        linear_key_head_dim=4,
        linear_value_head_dim=4,
        eos_token_ids=(),
    )
    drafter = tiny_drafter_config(
        target,
        intermediate_size=8,
        num_hidden_layers=1,
        layer_types=("sliding_attention",),
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=4,
        block_size=4,
        target_layer_ids=(0, 1),
        head_topk=3,
    )
    return build_pair(target, drafter, random_target(target, 4), random_drafter(drafter, 4))


def mixed(first: int) -> list[SamplingParams]:
    """Slots 0 .. 3 are greedy with processors and logprobs, the others take the laws in turn."""
    greedy = [
        SamplingParams(logprobs=3),
        SamplingParams(presence_penalty=1.5, logprobs=0),
        SamplingParams(frequency_penalty=0.8, repetition_penalty=1.3),
        SamplingParams(min_tokens=2, logit_bias={3: 2.0}, bad_token_ids=[1]),
    ]
    return greedy + [
        SamplingParams(**LAWS[slot % len(LAWS)], seed=first + slot, logprobs=2 if slot < 9 else None)
        for slot in range(4, SLOTS)
    ]


def run(pair, how, size, first, **options):
    return how(pair, [PROMPT] * SLOTS, max_new_tokens=size, stop_token_ids=[], sampling=mixed(first), **options)


BLOCK = {"verification": "block"}


@pytest.fixture(scope="module")
def exact(pair):
    """Joint law of the second and third token, per law, in float64 from the target's own logits."""
    prefixes = [(), *itertools.product(range(VOCAB)), *itertools.product(range(VOCAB), repeat=2)]
    logits = {prefix: next_scores(pair, [*PROMPT, *prefix]) for prefix in prefixes}
    joints = []
    for law in LAWS:
        p = {prefix: reference_law(row, **law) for prefix, row in logits.items()}
        joint = np.zeros((VOCAB, VOCAB))
        for a, b in itertools.product(range(VOCAB), repeat=2):
            joint[b] += p[()][a] * p[(a,)][b] * p[(a, b)]
        joints.append(joint)
    return joints


@pytest.fixture(scope="module")
def drawn(pair):
    """Counts of the second and third token, which cycles emit, by both ways of decoding."""
    out = {}
    for turn, (name, how, options) in enumerate([("speculative", generate, BLOCK), ("plain", generate_plain, {})]):
        counts = np.zeros((len(LAWS), VOCAB, VOCAB))
        calls = -(-DRAWS * len(LAWS) // (SLOTS - 4 - len(LAWS)))
        for call in range(calls):
            result = run(pair, how, 3, (1000 * turn + call) * SLOTS, **options)
            tokens = np.array(result.tokens)[4:]
            law = np.arange(4, SLOTS) % len(LAWS)
            np.add.at(counts, (law, tokens[:, 1], tokens[:, 2]), 1)
        out[name] = counts
    return out


def test_the_joint_law_of_two_tokens_is_the_targets(drawn, exact, record_property):
    for name, counts in drawn.items():
        p_values = [joint_p_value(c, law) for c, law in zip(counts, exact, strict=True)]
        record_property(name, p_values)
        print(name, [f"{p:.2g}" for p in p_values])
        assert counts.sum(axis=(1, 2)).min() >= DRAWS
        assert min(p_values) > ALPHA / (2 * len(LAWS))
    same = [two_sample_p_value(*both) for both in zip(drawn["speculative"], drawn["plain"], strict=True)]
    assert min(same) > ALPHA / len(LAWS)


def logprobs(result, slot: int) -> Logprobs:
    found = result.logprobs[slot]
    assert found is not None
    return found


def test_greedy_requests_with_processors_equal_plain_ones_and_so_do_all_logprobs(pair):
    speculative, plain = run(pair, generate, 8, 10**9, **BLOCK), run(pair, generate_plain, 8, 10**9)
    assert [t.tolist() for t in speculative.tokens[:4]] == [t.tolist() for t in plain.tokens[:4]]
    assert 1 not in plain.tokens[3]
    for slot in range(2):
        one, other = logprobs(speculative, slot), logprobs(plain, slot)
        assert one.tokens.shape == (8,)
        np.testing.assert_allclose(one.tokens, other.tokens, atol=1e-5)
        np.testing.assert_allclose(one.top, other.top, atol=1e-5)
        np.testing.assert_array_equal(one.top_ids, other.top_ids)
    first = logprobs(speculative, 0)
    assert first.top.shape == (8, 3) and logprobs(speculative, 1).top.shape == (8, 0)
    assert speculative.logprobs[2] is None and speculative.logprobs[9] is None
    # Greedy without processors: the emitted token is the best one. A penalty changes the choice, not the logprob.
    np.testing.assert_array_equal(first.top_ids[:, 0], speculative.tokens[0])
    np.testing.assert_array_equal(first.top[:, 0], first.tokens)
    for result in (speculative, plain):
        for slot in (1, 4, 5, 6, 7, 8):
            got = logprobs(result, slot)
            ids = result.tokens[slot].tolist()
            for place in (0, 4, 7):
                row = next_scores(pair, [*PROMPT, *ids[:place]]).astype(np.float64)
                want = row - np.log(np.sum(np.exp(row)))
                best = np.sort(want)[::-1][: got.top.shape[1]]
                assert_close("logprobs", [got.tokens[place], *got.top[place]], [want[ids[place]], *best], FP32_LOGITS)
