"""What a request may ask for, and what is refused with a reason."""

import dataclasses

import pytest

from dspine_jax import SamplingParams, WidthCosts, generate, generate_plain
from dspine_jax.sampling.params import SamplingFields, per_request
from tests.markov import VOCAB, markov_pair


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("temperature", -0.1, "temperature is -0.1"),
        ("temperature", float("nan"), "temperature is nan"),
        ("temperature", float("inf"), "temperature is inf"),
        ("temperature", 1e-9, r"wanted 0 \(greedy\) or at least"),
        ("temperature", None, "temperature is None"),
        ("temperature", "1", "temperature is '1'"),
        ("temperature", True, "temperature is True"),
        ("top_k", 0, "top_k is 0"),
        ("top_k", 2.0, "top_k is 2.0"),
        ("top_k", -1, "top_k is -1"),
        ("top_p", 0.0, "top_p is 0.0, wanted a number above 0 and at most 1"),
        ("top_p", 1.1, "top_p is 1.1"),
        ("min_p", -0.1, "min_p is -0.1"),
        ("min_p", 1.1, "min_p is 1.1"),
        ("seed", -1, "seed is -1"),
        ("seed", 2**64, "seed is 18446744073709551616"),
        ("seed", 0.5, "seed is 0.5"),
        ("presence_penalty", float("inf"), "presence_penalty is inf"),
        ("frequency_penalty", 1e9, "frequency_penalty is"),
        ("repetition_penalty", 0, "repetition_penalty is 0"),
        ("logit_bias", {-1: 1.0}, "a token id in logit_bias is -1"),
        ("logit_bias", {1: float("nan")}, "logit_bias of token 1 is nan"),
        ("min_tokens", -1, "min_tokens is -1"),
        ("bad_token_ids", [1.5], "a token id in bad_token_ids is 1.5"),
        ("bad_token_ids", [None], "bad_token_ids has None"),
        ("allowed_token_ids", [], "allowed_token_ids is empty"),
        ("logprobs", -1, "logprobs is -1"),
        ("logprobs", 65, "logprobs is 65, wanted an integer, 0 to 64"),
    ],
)
def test_a_value_out_of_range_is_named(field, value, message):
    with pytest.raises(ValueError, match=message):
        SamplingParams(**{field: value})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"logit_bias": {VOCAB: 1.0}}, f"logit_bias has id {VOCAB}, wanted 0 to {VOCAB - 1}"),
        ({"bad_token_ids": [VOCAB]}, "bad_token_ids has id"),
        ({"allowed_token_ids": [99]}, "allowed_token_ids has id 99"),
        ({"min_tokens": 5}, "min_tokens is 5, but max_new_tokens is only 4"),
        ({"bad_token_ids": range(VOCAB)}, "leave no token"),
        ({"allowed_token_ids": [2], "bad_token_ids": [2]}, "leave no token"),
        ({"allowed_token_ids": [1], "min_tokens": 1}, "leave no token"),
        ({"logprobs": VOCAB + 1}, "the vocabulary has only"),
        ({"temperature": 1.0, "verify_width": 1}, "verify_width is 1, wanted 'auto', None or a number"),
        ({"verify_width": 17}, "verify_width is 17"),
        ({"verify_width": True}, "verify_width is True"),
        ({"verify_width": 4, "width_costs": WidthCosts((2,), (1.0,))}, "width_costs belong to"),
        ({"verify_width": "auto", "width_costs": WidthCosts((2, 17), (1.0, 2.0))}, "verify_width is 17"),
        ({"verification": "both"}, "verification is 'both', wanted 'token' or 'block'"),
        ({"sampling": [SamplingParams()] * 2}, "got 2 entries in sampling for 1 prompts"),
        ({"sampling": [SamplingParams()], "seed": 1}, "got sampling and seed as well"),
    ],
)
def test_a_request_that_cannot_be_served_is_refused_before_anything_runs(fields, message):
    with pytest.raises(ValueError, match=message):
        generate(markov_pair([0]), [[0]], max_new_tokens=4, stop_token_ids=[1], **fields)


@pytest.mark.parametrize("run", [generate, generate_plain])
def test_an_unknown_argument_is_refused(run):
    with pytest.raises(TypeError, match="unknown argument 'temprature'; known are allowed_token_ids, "):
        run(markov_pair([0]), [[0]], max_new_tokens=4, temprature=1.0)
    with pytest.raises(TypeError, match=r"sampling\[0\] is dict, wanted SamplingParams"):
        run(markov_pair([0]), [[0]], max_new_tokens=4, sampling=[{}])


@pytest.mark.parametrize(
    ("widths", "seconds", "message"),
    [
        ((2, 4), (1.0,), "2 widths and 1 costs"),
        ((4, 2), (1.0, 1.0), "wanted them ascending"),
        ((2, 4), (1.0, 0.0), "wanted positive seconds"),
        ((2, 4), (1.0, float("nan")), "wanted positive seconds"),
    ],
)
def test_costs_that_make_no_sense_are_refused(widths, seconds, message):
    with pytest.raises(ValueError, match=message):
        WidthCosts(widths, seconds)


def test_the_keyword_arguments_are_the_fields():
    fields = {field.name for field in dataclasses.fields(SamplingParams)}
    assert set(SamplingFields.__annotations__) == fields
    assert per_request(2, None, {"temperature": 0.5, "top_k": 3}) == (SamplingParams(temperature=0.5, top_k=3),) * 2


def test_a_checked_request_cannot_change():
    bias, bad = {1: 2}, [1, 1, 2]
    params = SamplingParams(logit_bias=bias, bad_token_ids=bad)
    bias[1], bad[0] = 5, 0
    assert params.logit_bias == {1: 2.0} and params.bad_token_ids == (1, 2)


def test_neutral_values_cost_nothing():
    """Such a request stays in the program without processors."""
    neutral = SamplingParams(presence_penalty=0, repetition_penalty=1, logit_bias={}, min_tokens=0, bad_token_ids=())
    assert not neutral.processed and not neutral.sampled
