"""Streams of a scripted engine: order, tools, reasoning, errors, silence, and readers that leave or dawdle."""

import json
import socket
import threading
import time

import openai
import pytest

from serve.engine import QueueTimeout, RequestFailed
from serve.http.settings import Settings
from tests.http_server import NAME, PATIENCE, chat_template, served, text_model
from tests.scripted_engine import ScriptedEngine, event_of, saying
from tests.text_pair import END, VOCAB

MESSAGES = [{"role": "user", "content": "hello"}]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "write",
            "description": "Writes a file.",
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}, "count": {"type": "integer"}}},
        },
    }
]
CALL = (
    "<tool_call>\n<function=write>\n<parameter=path>\n{}\n</parameter>\n<parameter=count>\n3\n</parameter>\n"
    "</function>\n</tool_call>"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.getbasetemp()


@pytest.fixture(scope="module")
def text(folder):
    return text_model(folder)


@pytest.fixture(scope="module")
def shared(folder):
    engine = ScriptedEngine(VOCAB, (END,))
    with served(engine, folder, Settings(keep_alive=0.2, drain_timeout=0.5)) as server:
        yield engine, server


@pytest.fixture
def engine(shared):
    engine, _ = shared
    yield engine
    engine.step, engine.failure = lambda: None, None
    engine.wait_idle()


@pytest.fixture(scope="module")
def server(shared):
    return shared[1]


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=PATIENCE) as made:
        yield made


def says(text, what: str, **options):
    return saying([*text.encode(what), END], **options)


def events(lines) -> list[dict]:
    """The data of a stream; its last event must be [DONE]."""
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    assert data[-1] == "[DONE]"
    return [json.loads(item) for item in data[:-1]]


@pytest.mark.parametrize("pieces", [1, 3, 1000])
def test_a_call_streams_as_it_comes(client, engine, text, pieces):
    path = 'src/a "quoted" name,\nünïcödé 日本.py' * 4
    engine.script = says(text, "I shall.\n" + CALL.format(path), pieces=pieces)
    content, name, fragments, reasons = "", None, [], []
    for part in client.chat.completions.create(model=NAME, messages=MESSAGES, tools=TOOLS, stream=True):
        choice = part.choices[0]
        content += choice.delta.content or ""
        reasons.append(choice.finish_reason)
        for call in choice.delta.tool_calls or ():
            assert call.index == 0
            name = call.function.name or name
            fragments.append(call.function.arguments)
    assert (content.strip(), name) == ("I shall.", "write")
    assert json.loads("".join(fragments)) == {"path": path, "count": 3}
    assert reasons[-1] == "tool_calls" and set(reasons[:-1]) == {None}
    assert len(fragments) > 20 or pieces > 1
    whole = client.chat.completions.create(model=NAME, messages=MESSAGES, tools=TOOLS)
    message = whole.choices[0].message
    assert (message.tool_calls[0].function.arguments, message.content) == ("".join(fragments), content)
    assert whole.choices[0].finish_reason == "tool_calls"


def test_an_answer_with_calls_may_be_sent_back(client, engine, text):
    engine.script = says(text, CALL.format("x"))
    message = client.chat.completions.create(model=NAME, messages=MESSAGES, tools=TOOLS).choices[0].message
    engine.script = says(text, "done")
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "ok"}
    for sent in (message, message.model_dump()):
        again = client.chat.completions.create(model=NAME, messages=[*MESSAGES, sent, result], tools=TOOLS)
        assert again.choices[0].message.content == "done"


def test_no_calls_where_none_may_be_made(client, engine, text):
    engine.script = says(text, CALL.format("x"))
    for options in ({"tools": TOOLS, "tool_choice": "none"}, {}):
        found = client.chat.completions.create(model=NAME, messages=MESSAGES, **options).choices[0]
        assert (found.message.content, found.message.tool_calls) == (CALL.format("x"), None)
        assert found.finish_reason == "stop"
        assert "tools:" not in text.tokenizer.decode(engine.requests[-1].prompt)
    engine.script = says(text, CALL.format("x") + "\n" + CALL.format("y"))
    found = client.chat.completions.create(model=NAME, messages=MESSAGES, tools=TOOLS, parallel_tool_calls=False)
    assert len(found.choices[0].message.tool_calls) == 1


def test_reasoning_is_apart_when_the_prompt_opens_it(client, engine, text):
    engine.script = says(text, "let me see\n</think>\n\nfine", pieces=2)
    open_think = {"chat_template_kwargs": {"enable_thinking": True}}
    whole = client.chat.completions.create(model=NAME, messages=MESSAGES, extra_body=open_think).choices[0].message
    assert whole.model_extra["reasoning_content"].strip() == "let me see" and whole.content.strip() == "fine"
    thought, content = "", ""
    for part in client.chat.completions.create(model=NAME, messages=MESSAGES, extra_body=open_think, stream=True):
        delta = part.choices[0].delta
        thought += (delta.model_extra or {}).get("reasoning_content", "")
        content += delta.content or ""
    assert (thought, content) == (whole.model_extra["reasoning_content"], whole.content)
    engine.script = says(text, "x")
    assert client.chat.completions.create(model=NAME, messages=MESSAGES).choices[0].message.content == "x"


def test_template_arguments_reach_the_template(client, engine, text):
    engine.script = says(text, "x")
    client.chat.completions.create(
        model=NAME, messages=MESSAGES, tools=TOOLS, extra_body={"chat_template_kwargs": {"effort": "low"}}
    )
    prompt = text.tokenizer.decode(engine.requests[-1].prompt)
    assert "effort: low" in prompt and "tools: write" in prompt


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_the_contract_of_a_stream(server, engine, text, path):
    engine.script = says(text, "one two three", pieces=2)
    asked = {"messages": MESSAGES} if "chat" in path else {"prompt": "hello"}
    body = asked | {"stream": True, "stream_options": {"include_usage": True}, "token_origins": True, "max_tokens": 99}
    with server.http() as http, http.stream("POST", path, json=body) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        parts = events(answer.iter_lines())
    *chunks, usage = parts
    assert all("finish_reason" in choice for part in chunks for choice in part["choices"])
    assert [part["usage"] for part in chunks] == [None] * len(chunks)
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert chunks[-1]["choices"][0].get("delta", {}) == {} and chunks[-1]["choices"][0].get("text", "") == ""
    tokens = text.encode("one two three")
    assert usage["choices"] == [] and usage["usage"]["completion_tokens"] == len(tokens) + 1
    assert usage["metrics"]["speculative_decoding"]["num_spec_steps"] == -(-(len(tokens) + 1) // 2)
    origins = [o for part in chunks for o in part["choices"][0]["token_origins"]]
    assert "".join(o["text"] for o in origins) == "one two three"
    assert [o["origin"] for o in origins][:4] == ["draft", "correction"] * 2 and len(origins) == len(tokens) + 1
    for part in chunks:  # each chunk's tokens are those of its text
        choice = part["choices"][0]
        said = choice.get("text", choice.get("delta", {}).get("content", ""))
        assert "".join(o["text"] for o in choice["token_origins"]) == said


def test_without_usage_the_last_chunk_has_the_metrics(server, engine, text):
    engine.script = says(text, "one")
    body = {"prompt": "hello", "stream": True, "n": 2}
    with server.http() as http, http.stream("POST", "/v1/completions", json=body) as answer:
        parts = events(answer.iter_lines())
    assert ["metrics" in part for part in parts] == [False] * (len(parts) - 1) + [True]
    assert not any("usage" in part for part in parts)


@pytest.mark.parametrize("streamed", [False, True])
def test_a_failure_before_the_first_token_has_its_status(server, engine, streamed):
    for error, status in ((RequestFailed("its scores are not finite"), 500), (QueueTimeout("too long", 7.2), 503)):
        engine.script = lambda request, error=error: [event_of([], request, finish="error", error=error)]
        with server.http() as http:
            answer = http.post("/v1/completions", json={"prompt": "x", "stream": streamed})
        assert answer.status_code == status and answer.json()["error"]["message"]
        assert answer.headers.get("retry-after") == ("8" if status == 503 else None)


def test_a_failure_later_is_an_event_and_the_last_one(client, server, engine, text):
    def script(request):
        yield event_of(text.encode("ab"), request)
        yield event_of([], request, finish="error", error=RequestFailed("its scores are not finite"))

    engine.script = script
    with server.http() as http:
        lines = http.post("/v1/completions", json={"prompt": "x", "stream": True}).text.strip().split("\n\n")
    assert json.loads(lines[-1].removeprefix("data: "))["error"]["code"] == "request_failed"
    with pytest.raises(openai.APIError, match="not finite"):
        list(client.completions.create(model=NAME, prompt="x", stream=True))
    engine.script = says(text, "fine")
    assert client.completions.create(model=NAME, prompt="x").choices[0].text == "fine"


def test_silence_is_filled_with_comments(server, engine, text):
    release = threading.Event()
    engine.step = lambda: release.wait(PATIENCE)
    engine.script = says(text, "late")
    with server.http() as http, http.stream("POST", "/v1/completions", json={"prompt": "x", "stream": True}) as answer:
        lines = answer.iter_lines()
        assert next(lines) == ": keep-alive"
        release.set()
        parts = events(lines)
    assert "".join(part["choices"][0]["text"] for part in parts) == "late"


@pytest.mark.parametrize("body", [{"stream": True}, {"stream": True, "n": 3}, {}, {"n": 3}])
def test_who_leaves_is_not_answered_any_further(server, engine, text, body):
    engine.script = saying(text.encode("a") * 10_000, pieces=1)
    engine.step = lambda: time.sleep(0.01)
    connection = socket.create_connection(("127.0.0.1", server.port))
    data = json.dumps({"prompt": "x"} | body).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(data)}\r\n\r\n"
    before = len(engine.handles)
    connection.sendall(head.encode() + data)
    if "stream" in body:
        assert connection.recv(64).startswith(b"HTTP/1.1 200")
    else:
        while len(engine.handles) < before + body.get("n", 1):
            time.sleep(0.005)
    connection.close()
    engine.wait_idle()
    assert all(handle.cancelled for handle in engine.handles[before:])


def test_all_or_nothing_when_there_is_no_room_for_all(client, engine, text):
    release = threading.Event()
    engine.script, engine.step = says(text, "hello"), lambda: release.wait(PATIENCE)
    waiting = threading.Thread(target=lambda: client.completions.create(model=NAME, prompt="x", n=4))
    waiting.start()
    while engine.running < 4:
        time.sleep(0.005)
    with pytest.raises(openai.InternalServerError, match="too many") as found:
        client.completions.create(model=NAME, prompt="x", n=5)
    assert (found.value.status_code, found.value.response.headers["retry-after"]) == (503, "4")
    release.set()
    waiting.join(PATIENCE)
    engine.wait_idle()
    assert [handle.cancelled for handle in engine.handles[-8:]] == [False] * 4 + [True] * 4


def test_who_does_not_read_is_cut_off_and_others_are_not_held_up(folder, text):
    engine = ScriptedEngine(VOCAB, (END,), context=200_000)
    engine.script = saying(text.encode("abcdefgh") * 8_000, pieces=8, finish="length")
    with served(engine, folder, Settings(write_timeout=0.5, drain_timeout=0.5)) as server:
        lazy = socket.socket()
        lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        lazy.connect(("127.0.0.1", server.port))
        # Far more than the kernel takes off the server's hands.
        data = b'{"prompt": "x", "stream": true, "max_tokens": 190000, "logprobs": 5, "token_origins": true}'
        lazy.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(data), data)
        )
        assert lazy.recv(16)
        engine.wait_idle()  # it has said everything: nobody waits for the reader
        engine.script = says(text, "prompt")
        with server.http() as http:
            assert http.post("/v1/completions", json={"prompt": "x"}).json()["choices"][0]["text"] == "prompt"
            end = time.monotonic() + PATIENCE
            while 'outcome="disconnected"} 1.0' not in http.get("/metrics").text:
                assert time.monotonic() < end
                time.sleep(0.05)
        lazy.close()


def test_messages_of_parts_and_of_developers(client, engine, text):
    engine.script = says(text, "x")
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    client.chat.completions.create(
        model=NAME, messages=[{"role": "developer", "content": "rules"}, {"role": "user", "content": parts}]
    )
    assert text.tokenizer.decode(engine.requests[-1].prompt).startswith("system: rules\nuser: ab\n")
    assert chat_template is not None
