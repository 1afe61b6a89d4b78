"""The official client against a real engine: everything equals what the library gives offline."""

import time
from typing import Any

import openai
import pytest

from dspine_jax import SamplingParams, generate, load
from dspine_jax.generate import generate_plain
from serve.engine import Engine, EngineConfig
from serve.text import Detokenizer, TextModel
from tests.engine_bench import quick_compilation
from tests.http_server import NAME, PATIENCE, served
from tests.text_pair import END, PROMPT, text_pair
from tests.tolerances import FP32_LOGITS, assert_close

CONTEXT = 160
MESSAGES = [{"role": "user", "content": "def add"}]


@pytest.fixture(scope="module", autouse=True)
def quick():
    with quick_compilation():
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.getbasetemp()


@pytest.fixture(scope="module")
def pair(folder):
    return load(text_pair(folder).converted, dtype="float32")


@pytest.fixture(scope="module")
def text(folder):
    return TextModel.read(text_pair(folder).target)


@pytest.fixture(scope="module")
def engine(pair):
    config = EngineConfig(context=CONTEXT, slots=2, chunk=64, page=64, max_logprobs=5, queue_limit=6)
    with Engine(pair, config) as running:
        yield running


@pytest.fixture(scope="module")
def server(engine, folder, text):
    with served(engine, folder, text=text) as running:
        yield running


@pytest.fixture(scope="module")
def client(server):
    made = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=PATIENCE)
    with made:
        yield made


LIMIT = 20
SAMPLED: dict[str, Any] = {"temperature": 0.9, "top_p": 0.9}
PENALTIES: dict[str, Any] = {
    "repetition_penalty": 1.3,
    "frequency_penalty": 0.5,
    "presence_penalty": 0.5,
    "min_tokens": 6,
}


@pytest.fixture(scope="module")
def offline(pair, text):
    """One call of the library: two seeds, logprobs, and penalties."""
    params = [
        SamplingParams(**SAMPLED, seed=7),
        SamplingParams(**SAMPLED, seed=8),
        SamplingParams(logprobs=3),
        SamplingParams(**PENALTIES, logit_bias={40: 2.0}),
    ]
    prompts = [chat_ids(text)] * 3 + [text.encode(PROMPT)]
    return generate(pair, prompts, max_new_tokens=LIMIT, stop_token_ids=[END], sampling=params)


@pytest.fixture(scope="module")
def plain(pair, text) -> list[int]:
    """PROMPT's continuation, token by token."""
    return generate_plain(pair, [text.encode(PROMPT)], max_new_tokens=48, stop_token_ids=[]).tokens[0].tolist()


def decoded(text, tokens) -> str:
    detokenizer = Detokenizer(text, hidden=(END,))
    return "".join([*map(detokenizer.feed, tokens), detokenizer.finish()])


def chat_ids(text) -> list[int]:
    return text.encode("user: def add\nassistant: ")


def wait_idle(engine) -> None:
    end = time.monotonic() + PATIENCE
    while engine.stats().running or engine.stats().waiting:
        assert time.monotonic() < end
        time.sleep(0.01)
    assert engine.stats().pages_in_use == 0


def test_greedy_equals_plain_decoding_streamed_and_whole(client, plain, text):
    fields = {"model": NAME, "prompt": PROMPT, "max_tokens": 48, "temperature": 0, "extra_body": {"ignore_eos": True}}
    whole = client.completions.create(**fields)
    parts = client.completions.create(**fields, stream=True)
    assert whole.choices[0].text == decoded(text, plain) == "".join(part.choices[0].text for part in parts)
    assert (whole.choices[0].finish_reason, whole.usage.completion_tokens) == ("length", 48)


def test_a_stop_token_ends_the_answer_and_is_no_part_of_it(client, plain, text):
    place = next(i for i in range(5, 40) if plain[i] not in plain[:i])
    found = client.completions.create(
        model=NAME, prompt=PROMPT, max_tokens=48, temperature=0, extra_body={"stop_token_ids": [plain[place]]}
    )
    assert (found.choices[0].finish_reason, found.usage.completion_tokens) == ("stop", place + 1)
    assert found.choices[0].text == decoded(text, plain[:place])


def test_a_seed_gives_what_the_library_gives_and_copies_count_upwards(client, offline, text):
    expected = [tokens.tolist() for tokens in offline.tokens[:2]]
    fields = {"model": NAME, "messages": MESSAGES, "max_tokens": LIMIT, "seed": 7, **SAMPLED}
    whole = client.chat.completions.create(**fields, n=2)
    assert [choice.message.content for choice in whole.choices] == [decoded(text, tokens) for tokens in expected]
    assert expected[0] != expected[1]
    assert whole.usage.completion_tokens == sum(map(len, expected))
    assert whole.usage.prompt_tokens == len(chat_ids(text))
    streamed = {0: "", 1: ""}
    for part in client.chat.completions.create(**fields, n=2, stream=True):
        for choice in part.choices:
            streamed[choice.index] += choice.delta.content or ""
    assert list(streamed.values()) == [choice.message.content for choice in whole.choices]


def test_the_order_of_a_stream(client):
    parts = list(
        client.chat.completions.create(
            model=NAME, messages=MESSAGES, max_tokens=9, stream=True, stream_options={"include_usage": True}, seed=1
        )
    )
    first, *middle, ending, usage = parts
    assert first.choices[0].delta.role == "assistant" and first.choices[0].delta.content == ""
    assert all(part.choices[0].finish_reason is None and part.usage is None for part in [first, *middle])
    assert ending.choices[0].finish_reason == "length"
    assert ending.choices[0].delta.model_dump(exclude_none=True) == {}
    assert usage.choices == [] and usage.usage.completion_tokens == 9
    assert len({part.id for part in parts}) == 1


def test_acceptance_is_told_and_adds_up(client):
    whole = client.chat.completions.create(model=NAME, messages=MESSAGES, max_tokens=30, temperature=0)
    told = whole.model_extra["metrics"]["speculative_decoding"]
    steps, agreed = told["num_spec_steps"], told["num_accepted_draft_tokens"]
    histogram = told["acceptance_histogram"]
    assert steps == sum(histogram) > 0 and agreed == sum(i * count for i, count in enumerate(histogram))
    assert told["num_draft_tokens"] == steps * told["num_spec_tokens"]
    assert told["mean_acceptance_length"] == 1 + agreed / steps
    # The token after the prompt, then each cycle's; the limit may cut the last cycle's.
    assert whole.usage.completion_tokens <= 1 + steps + agreed


def test_a_stop_string_ends_the_answer_and_frees_the_slot(client, engine, plain, text):
    full = decoded(text, plain)
    stop = full[8:11]
    before = engine.stats().finished.get("cancelled", 0)
    found = client.completions.create(model=NAME, prompt=PROMPT, max_tokens=100, temperature=0, stop=[stop, "\0never"])
    assert (found.choices[0].text, found.choices[0].finish_reason) == (full[: full.index(stop)], "stop")
    wait_idle(engine)
    assert engine.stats().finished.get("cancelled", 0) == before + 1


def test_logprobs_are_the_librarys(client, offline, text):
    expected = offline.logprobs[2]
    assert expected is not None
    fields = {"model": NAME, "messages": MESSAGES, "max_tokens": LIMIT, "temperature": 0, "top_logprobs": 3}
    whole = client.chat.completions.create(**fields, logprobs=True)
    entries = whole.choices[0].logprobs.content
    assert len(entries) == whole.usage.completion_tokens == len(expected.tokens)
    assert_close("logprobs", [entry.logprob for entry in entries], expected.tokens, FP32_LOGITS)
    assert_close("best", [[o.logprob for o in entry.top_logprobs] for entry in entries], expected.top, FP32_LOGITS)
    joined = b"".join(bytes(entry.bytes or []) for entry in entries)
    assert joined.decode("utf-8", "replace") == whole.choices[0].message.content
    streamed = []
    for part in client.chat.completions.create(**fields, logprobs=True, stream=True):
        found = part.choices[0].logprobs
        streamed += found.content if found else []
    assert streamed == entries
    completion = client.completions.create(
        model=NAME, prompt=chat_ids(text), max_tokens=LIMIT, temperature=0, logprobs=3
    ).choices[0]
    assert_close("completion", completion.logprobs.token_logprobs, expected.tokens, FP32_LOGITS)
    assert completion.logprobs.text_offset[:2] == [0, len(decoded(text, offline.tokens[2][:1]))]


def test_several_prompts_in_each_form_are_answered_alone(client, text):
    prompts = ["def a", "class B:"]
    ids = [text.encode(prompt) for prompt in prompts]
    fields = {"model": NAME, "max_tokens": 8, "temperature": 0}
    both = client.completions.create(prompt=prompts, **fields)
    alone = [client.completions.create(prompt=prompt, **fields).choices[0].text for prompt in prompts]
    assert [choice.text for choice in both.choices] == alone
    assert [choice.index for choice in both.choices] == [0, 1]
    assert [choice.text for choice in client.completions.create(prompt=ids, **fields).choices] == alone
    assert client.completions.create(prompt=ids[0], **fields).choices[0].text == alone[0]
    assert both.usage.prompt_tokens == sum(map(len, ids))


def test_leaving_a_stream_frees_its_slots_and_the_next_request_is_as_ever(client, engine):
    fields = {"model": NAME, "prompt": PROMPT, "max_tokens": 100, "temperature": 0, "extra_body": {"ignore_eos": True}}
    fresh = client.completions.create(**fields | {"max_tokens": 10})
    for _ in range(3):
        stream = client.completions.create(**fields, n=2, stream=True)
        next(iter(stream))
        stream.close()
        wait_idle(engine)
    assert client.completions.create(**fields | {"max_tokens": 10}).choices[0].text == fresh.choices[0].text


def test_a_caller_who_does_not_wait_frees_its_slots(server, engine):
    body = {"prompt": PROMPT, "max_tokens": 100, "n": 2, "ignore_eos": True}
    before = engine.stats().finished.get("cancelled", 0)
    with server.http() as http, pytest.raises(Exception, match="timed out"):
        http.post("/v1/completions", json=body, timeout=0.1)
    wait_idle(engine)
    assert engine.stats().finished.get("cancelled", 0) == before + 2


@pytest.mark.parametrize(
    ("tokens", "limit", "status"),
    [
        (CONTEXT - 1, 1, 200),
        (CONTEXT, 1, 400),
        (CONTEXT + 9, 1, 400),
        (CONTEXT - 8, 8, 200),
        (CONTEXT - 8, 9, 400),
    ],
)
def test_the_context_is_usable_to_its_last_token(server, tokens, limit, status):
    with server.http() as http:
        body = {"prompt": [5] * tokens, "max_tokens": limit, "ignore_eos": True}
        answer = http.post("/v1/completions", json=body)
    assert answer.status_code == status
    if status == 200:
        assert answer.json()["usage"]["completion_tokens"] == limit
    else:
        assert answer.json()["error"]["code"] == "context_length_exceeded"


def test_an_answer_may_use_what_the_context_leaves(client, text):
    whole = client.chat.completions.create(
        model=NAME, messages=MESSAGES, temperature=0, extra_body={"ignore_eos": True}
    )
    assert whole.usage.total_tokens == CONTEXT


def test_a_prompt_that_comes_again_is_read_once_and_the_answer_is_the_same(client, engine):
    fields = {"model": NAME, "prompt": [7, 8, 9] * 30, "max_tokens": 8, "temperature": 0}
    cold, warm = (client.completions.create(**fields) for _ in range(2))
    assert [found.usage.prompt_tokens_details.cached_tokens for found in (cold, warm)] == [0, 64]
    assert warm.choices[0].text == cold.choices[0].text
    both = client.completions.create(**fields | {"prompt": [[7, 8, 9] * 30, [7, 8, 9] * 25]}, n=2)
    assert both.usage.prompt_tokens_details.cached_tokens == 128
    assert engine.stats().prefix_hits >= 5


def test_tokenize_and_back(server, text):
    with server.http() as http:
        told = http.post("/tokenize", json={"messages": MESSAGES}).json()
        assert told == {"tokens": chat_ids(text), "count": len(chat_ids(text)), "max_model_len": CONTEXT}
        ids = http.post("/tokenize", json={"prompt": "naïve 😀"}).json()["tokens"]
        assert http.post("/detokenize", json={"tokens": ids}).json() == {"prompt": "naïve 😀"}


def test_penalties_and_biases_reach_the_engine(client, offline, plain, text):
    expected = offline.tokens[3].tolist()
    assert expected != plain[: len(expected)]
    found = client.completions.create(
        model=NAME, prompt=PROMPT, max_tokens=LIMIT, temperature=0, logit_bias={"40": 2.0}, extra_body=PENALTIES
    )
    assert found.choices[0].text == decoded(text, expected)
    assert found.usage.completion_tokens == len(expected) >= 6


def test_the_models_are_one(client):
    assert [model.id for model in client.models.list()] == [NAME]
    assert client.models.retrieve(NAME).id == NAME
    with pytest.raises(openai.NotFoundError, match="no model"):
        client.models.retrieve("other")
    with pytest.raises(openai.NotFoundError, match="no model"):
        client.chat.completions.create(model="other", messages=MESSAGES)


def test_metrics_are_the_engines(server, engine):
    wait_idle(engine)
    with server.http() as http:
        lines = dict(line.rsplit(" ", 1) for line in http.get("/metrics").text.splitlines() if line[0] != "#")
    stats = engine.stats()
    per_place = [
        float(lines[f'dspine:spec_decode_num_accepted_tokens_per_pos_total{{position="{place}"}}'])
        for place in range(len(stats.accepted_at))
    ]
    assert per_place == stats.accepted_at.tolist()
    assert float(lines["dspine:spec_decode_num_accepted_tokens_total"]) == stats.accepted_at.sum()
    assert float(lines["dspine:spec_decode_num_drafts_total"]) == stats.accepted.sum()
    assert sum(float(lines[f'dspine:generation_tokens_total{{origin="{o}"}}']) for o in ("draft", "correction", "bonus")
               ) == sum(stats.tokens.values())  # fmt: skip
    assert float(lines["dspine:num_requests_running"]) == float(lines["dspine:kv_cache_usage_perc"]) == 0
    assert float(lines['dspine:compilations_total{phase="serving"}']) == stats.compilations == 0
    assert float(lines["dspine:cycle_seconds_count"]) == stats.cycles - stats.chunk_cycles
    assert float(lines["dspine:request_cycle_seconds_count"]) > 0
