"""Penalties, biases and masks: each row of a block sees the history that it would have in plain decoding."""

import dataclasses

import numpy as np
import pytest

import dspine_jax.request
from dspine_jax import SamplingParams, generate, generate_plain
from tests.markov import KINDS, LOGITS, VOCAB, joint_p_value, markov_pair, reference_law

SLOTS, WIDTH, DRAWS, ALPHA = 1024, 4, 20_000, 1e-3
PROMPT, STOP = [0, 3], 1
CASES = {
    "presence": {"presence_penalty": 1.5},
    "frequency": {"frequency_penalty": 1.5},
    "negative frequency": {"frequency_penalty": -0.7},
    "repetition": {"repetition_penalty": 1.8},
    "bias": {"logit_bias": {2: 1.5, 4: -0.5}},
    "min_tokens": {"min_tokens": 3},
    "bad": {"bad_token_ids": [2]},
    "allowed": {"allowed_token_ids": [0, 1, 4]},
    "all": {
        "presence_penalty": 0.4,
        "frequency_penalty": 0.6,
        "repetition_penalty": 1.3,
        "logit_bias": {4: 1.0},
        "min_tokens": 2,
        "bad_token_ids": [2],
    },
}
SAMPLED = ["all", "frequency", "repetition", "min_tokens"]


@pytest.fixture(autouse=True)
def large_batches(monkeypatch):
    monkeypatch.setattr(dspine_jax.request, "MAX_BATCH", SLOTS)


def run(params, size, how=generate, stops=(STOP,), **options):
    """All slots, the drafters in turn. One program for all tests of this file, and one for plain decoding."""
    pair = markov_pair([slot % len(KINDS) for slot in range(SLOTS)])
    return how(pair, [PROMPT] * SLOTS, max_new_tokens=size, stop_token_ids=stops, sampling=params, **options)


def reference_logits(params: SamplingParams, emitted: list[int], stops=(STOP,)) -> np.ndarray:
    """Float64, straight from the definition."""
    x = LOGITS[[*PROMPT, *emitted][-1]].astype(np.float64)
    for token in range(VOCAB):
        count = emitted.count(token)
        if count or token in PROMPT:
            x[token] *= params.repetition_penalty if x[token] < 0 else 1 / params.repetition_penalty
        x[token] -= params.frequency_penalty * count + params.presence_penalty * (count > 0)
        x[token] += (params.logit_bias or {}).get(token, 0.0)
        allowed = params.allowed_token_ids is None or token in params.allowed_token_ids
        early = token in stops and len(emitted) < params.min_tokens
        if not allowed or token in params.bad_token_ids or early:
            x[token] = -np.inf
    return x


def reference_joint(params: SamplingParams, size: int) -> np.ndarray:
    """[V+1, ...] probability of each run; V stands for what would come after a stop token."""
    law = np.zeros((VOCAB + 1,) * size)

    def walk(emitted, mass):
        if len(emitted) == size or STOP in emitted:
            law[(*emitted, *[VOCAB] * (size - len(emitted)))] = mass
            return
        p = reference_law(reference_logits(params, emitted), temperature=params.temperature)
        for token in np.flatnonzero(p):
            walk([*emitted, int(token)], mass * p[token])

    walk([], 1.0)
    return law


@pytest.mark.parametrize("stops", [(STOP,), ()])
def test_greedy_speculative_equals_plain_and_the_definition(stops):
    """Each case with each drafter, the always wrong one among them: what was only proposed leaves no trace."""
    size = 40
    params = [SamplingParams(**list(CASES.values())[slot // 3 % len(CASES)]) for slot in range(SLOTS)]
    speculative = run(params, size, stops=stops, verify_width=WIDTH)
    plain = run(params, size, generate_plain, stops=stops)
    for slot in range(3 * len(CASES)):
        emitted: list[int] = []
        while len(emitted) < size and not set(stops) & set(emitted):
            emitted.append(int(np.argmax(reference_logits(params[slot], emitted, stops))))
        assert plain.tokens[slot].tolist() == emitted, params[slot]
    assert [t.tolist() for t in speculative.tokens] == [t.tolist() for t in plain.tokens]
    assert speculative.finish_reason == plain.finish_reason
    assert speculative.stats.histogram[3] > 0 and speculative.stats.histogram[0] > 0
    different = {tuple(plain.tokens[3 * case].tolist()) for case in range(len(CASES))}
    assert len(different) >= (4 if stops else 6)  # the processors do something


@pytest.mark.parametrize("how", ["speculative", "plain"])
def test_sampled_runs_have_the_exact_law(how, record_property):
    """Joint law of the first three tokens, at least 20 000 draws per case, all drafters."""
    size, per_call = 3, SLOTS // len(SAMPLED)
    names = [name for name in SAMPLED for _ in range(per_call)]
    counts = {name: np.zeros((VOCAB + 1,) * size) for name in SAMPLED}
    calls = -(-DRAWS // per_call)
    for call in range(calls):
        first = (call + 1000 * (how == "plain")) * SLOTS
        params = [SamplingParams(temperature=1.0, seed=first + slot, **CASES[name]) for slot, name in enumerate(names)]
        result = run(params, size, verify_width=WIDTH) if how == "speculative" else run(params, size, generate_plain)
        for name, tokens in zip(names, result.tokens, strict=True):
            counts[name][(*tokens.tolist(), *[VOCAB] * (size - len(tokens)))] += 1
    p_values = {
        name: joint_p_value(counts[name], reference_joint(SamplingParams(temperature=1.0, **CASES[name]), size))
        for name in SAMPLED
    }
    record_property("p-values", p_values)
    print(how, {name: f"{p:.2g}" for name, p in p_values.items()})
    assert min(c.sum() for c in counts.values()) >= DRAWS
    assert min(p_values.values()) > ALPHA / (2 * len(SAMPLED))


def test_the_definition_can_fail():
    """A penalty that is frozen for a block, or a bias that is lost, is another law."""
    exact = reference_joint(SamplingParams(temperature=1.0, **CASES["all"]), 3)
    other = dataclasses.replace(SamplingParams(temperature=1.0, **CASES["all"]), frequency_penalty=0.45)
    counts = np.random.default_rng(0).multinomial(DRAWS, reference_joint(other, 3).ravel()).reshape(exact.shape)
    assert joint_p_value(counts, exact) < ALPHA / (2 * len(SAMPLED))
