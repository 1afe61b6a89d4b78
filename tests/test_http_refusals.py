"""What is not served is refused by name, in OpenAI's form, and never with a 5xx."""

import json
import re
import socket

import pytest

from serve.http.schema.refused import CHAT, COMPLETIONS
from serve.http.settings import Settings
from tests.http_server import NAME, served, text_model
from tests.peers import ROOT
from tests.scripted_engine import ScriptedEngine, saying
from tests.text_pair import END, VOCAB

CHAT_PATH, TEXT_PATH = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "hello"}]
BASE = {CHAT_PATH: {"messages": MESSAGES}, TEXT_PATH: {"prompt": "hello"}}
LIMIT = 64 * 1024


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.getbasetemp()
    engine = ScriptedEngine(VOCAB, (END,), script=saying([*text_model(folder).encode("fine"), END]))
    with served(engine, folder, Settings(max_body=LIMIT, drain_timeout=0.5)) as running:
        yield running


@pytest.fixture(scope="module")
def http(server):
    with server.http() as client:
        yield client


def check(answer, param, status=400) -> dict:
    """The error, after its form was looked at."""
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert sorted(error) == ["code", "message", "param", "type"] and answer.json().keys() == {"error"}
    assert error["param"] == param and error["message"] and error["code"]
    assert answer.headers["x-request-id"]
    return error


REFUSED = [(CHAT_PATH, name) for name in CHAT] + [(TEXT_PATH, name) for name in COMPLETIONS]
# For each, a value that asks for something.
ASKING = {"store": True, "response_format": {"type": "json_object"}, "best_of": 3, "echo": True}


@pytest.mark.parametrize(("path", "name"), REFUSED)
def test_a_field_that_is_not_honoured_is_named(http, path, name):
    error = check(http.post(path, json=BASE[path] | {name: ASKING.get(name, "x")}), name)
    assert error["message"].startswith(f"{name} is not supported: ") and error["code"] == "unsupported_parameter"


@pytest.mark.parametrize(("path", "table"), [(CHAT_PATH, CHAT), (TEXT_PATH, COMPLETIONS)])
def test_values_that_ask_for_nothing_are_taken(http, path, table):
    nothing = {name: values[0] for name, (_, values) in table.items() if values}
    assert {"store": False, "response_format": {"type": "text"}}.items() <= nothing.items()
    assert http.post(path, json=BASE[path] | nothing).status_code == 200
    assert http.post(path, json=BASE[path] | dict.fromkeys(table)).status_code == 200
    # Equal in Python, but not in JSON.
    check(http.post(path, json=BASE[path] | {"store": 0}), "store")


def test_the_document_lists_them_all():
    lines = (ROOT / "docs" / "server.md").read_text(encoding="utf-8").splitlines()
    listed = {match[1] for line in lines if (match := re.fullmatch(r"\| `(\w+)` \| refused.*\|", line))}
    assert listed == CHAT.keys() | COMPLETIONS.keys()


WRONG = [
    (CHAT_PATH, {"invented": 1}, "invented"),
    (CHAT_PATH, {"messages": []}, "messages"),
    (CHAT_PATH, {"messages": "hello"}, "messages"),
    (CHAT_PATH, {"messages": [{"role": "user"}]}, "messages[0]"),
    (CHAT_PATH, {"messages": [{"role": "function", "content": "x"}]}, "messages[0].role"),
    (CHAT_PATH, {"messages": [*MESSAGES, {"role": "user", "content": "x", "mood": 1}]}, "messages[1].mood"),
    (CHAT_PATH, {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
     "messages[0].content"),
    (CHAT_PATH, {"messages": [{"role": "user", "content": "x", "tool_calls": []}]}, "messages[0]"),
    (CHAT_PATH, {"max_tokens": 0}, "max_tokens"),
    (CHAT_PATH, {"max_completion_tokens": -1}, "max_completion_tokens"),
    (CHAT_PATH, {"max_tokens": 1, "max_completion_tokens": 1}, "max_tokens"),
    (CHAT_PATH, {"max_tokens": 10**9}, "messages"),
    (CHAT_PATH, {"temperature": -1}, "temperature"),
    (CHAT_PATH, {"temperature": "hot"}, "temperature"),
    (CHAT_PATH, {"temperature": 10**400}, "temperature"),
    (CHAT_PATH, {"top_p": 0}, "top_p"),
    (CHAT_PATH, {"top_k": 0}, "top_k"),
    (CHAT_PATH, {"min_p": 2}, "min_p"),
    (CHAT_PATH, {"presence_penalty": 1e9}, "presence_penalty"),
    (CHAT_PATH, {"frequency_penalty": None, "repetition_penalty": 0}, "repetition_penalty"),
    (CHAT_PATH, {"min_tokens": 9, "max_tokens": 3}, "min_tokens"),
    (CHAT_PATH, {"logit_bias": {"x": 1}}, "logit_bias"),
    (CHAT_PATH, {"logit_bias": {str(VOCAB): 1}}, "logit_bias"),
    (CHAT_PATH, {"logit_bias": {"1": 1e9}}, "logit_bias"),
    (CHAT_PATH, {"seed": 2**70}, "seed"),
    (CHAT_PATH, {"seed": 1.5}, "seed"),
    (CHAT_PATH, {"n": 0}, "n"),
    (CHAT_PATH, {"n": 1000}, "n"),
    (CHAT_PATH, {"stop": ""}, "stop"),
    (CHAT_PATH, {"stop": ["a"] * 17}, "stop"),
    (CHAT_PATH, {"stop": [1]}, "stop"),
    (CHAT_PATH, {"stop": "<|endoftext|>"}, "stop"),
    (CHAT_PATH, {"stop_token_ids": [VOCAB]}, "stop_token_ids"),
    (CHAT_PATH, {"stop_token_ids": list(range(100))}, "stop_token_ids"),
    (CHAT_PATH, {"logprobs": 3}, "logprobs"),
    (CHAT_PATH, {"top_logprobs": 3}, "top_logprobs"),
    (CHAT_PATH, {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    (CHAT_PATH, {"stream": "yes"}, "stream"),
    (CHAT_PATH, {"stream_options": {"include_usage": True}}, "stream_options"),
    (CHAT_PATH, {"stream": True, "stream_options": {"invented": True}}, "stream_options.invented"),
    (CHAT_PATH, {"tools": [{"type": "custom"}]}, "tools[0].type"),
    (CHAT_PATH, {"tools": [{"type": "function", "function": {"name": "a", "strict": True}}]},
     "tools[0].function.strict"),
    (CHAT_PATH, {"tool_choice": "required"}, "tool_choice"),
    (CHAT_PATH, {"tool_choice": {"type": "function", "function": {"name": "a"}}}, "tool_choice"),
    (CHAT_PATH, {"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
    (CHAT_PATH, {"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "high"}}, "reasoning_effort"),
    (TEXT_PATH, {"prompt": ""}, "prompt"),
    (TEXT_PATH, {"prompt": []}, "prompt"),
    (TEXT_PATH, {"prompt": [[]]}, "prompt"),
    (TEXT_PATH, {"prompt": ["a", 1]}, "prompt"),
    (TEXT_PATH, {"prompt": [VOCAB]}, "prompt"),
    (TEXT_PATH, {"prompt": [-1]}, "prompt"),
    (TEXT_PATH, {"prompt": "a" * 5000}, "prompt"),
    (TEXT_PATH, {"prompt": ["a"] * 500}, "prompt"),
    (TEXT_PATH, {"logprobs": 21}, "logprobs"),
    (TEXT_PATH, {"logprobs": True}, "logprobs"),
    (TEXT_PATH, {"messages": MESSAGES}, "messages"),
    ("/tokenize", {}, None),
    ("/tokenize", {"prompt": "x", "messages": MESSAGES}, None),
    ("/detokenize", {"tokens": [VOCAB]}, "tokens"),
    ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "fields", "param"), WRONG, ids=[json.dumps(row[1])[:50] for row in WRONG])
def test_what_is_wrong_is_named(http, path, fields, param):
    data = json.dumps(BASE.get(path, {}) | fields)
    check(http.post(path, content=data, headers={"content-type": "application/json"}), param)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"prompt": "\xff"}',
        b'{"prompt": "\\ud800"}',
        b'{"prompt": "x", "temperature": NaN}',
        b'{"prompt": "x", "temperature": 1e999}',
        b'{"prompt": "x", "metadata": ' + b"[" * 5000 + b"]" * 5000 + b"}",
        b'{"prompt": "x", "seed": ' + b"9" * 5000 + b"}",
        b"\x00\x01",
    ],
)
def test_what_is_no_json_is_refused(http, data):
    answer = http.post(TEXT_PATH, content=data, headers={"content-type": "application/json"})
    check(answer, answer.json()["error"]["param"])


def test_other_content_types_are_refused(http):
    for kind in ("text/plain", "application/x-www-form-urlencoded", "", "application/json; charset=latin-1"):
        check(http.post(TEXT_PATH, content=b'{"prompt": "x"}', headers={"content-type": kind}), None, 415)
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    check(http.post(TEXT_PATH, content=b"x", headers=headers), None, 415)
    kind = {"content-type": "application/json; charset=UTF-8"}
    assert http.post(TEXT_PATH, content=b'{"prompt": "x"}', headers=kind).status_code == 200


def test_paths_methods_and_models(http):
    check(http.get("/v1/nothing"), None, 404)
    check(http.get("/v1/chat/completions/"), None, 404)
    assert check(http.get(CHAT_PATH), None, 405) and http.get(CHAT_PATH).headers["allow"] == "POST"
    check(http.post("/health"), None, 405)
    check(http.post(TEXT_PATH, json={"prompt": "x", "model": "other"}), "model", 404)
    assert http.post(TEXT_PATH, json={"prompt": "x", "model": NAME}).status_code == 200
    for path in ("/page/nothing.js", "/page/..%2fcli.py", "/page/%2e%2e/app.py"):
        check(http.get(path), None, 404)


def chunked(size: int):
    for _ in range(size // 1024):
        yield b"x" * 1024


def test_large_bodies_are_refused_whether_or_not_they_say_so(server):
    kind = {"content-type": "application/json"}
    for content in (b"x" * (LIMIT + 1), chunked(2 * LIMIT)):
        with server.http() as http:
            check(http.post(TEXT_PATH, content=content, headers=kind), None, 413)
    body = json.dumps({"prompt": "x", "user": "u" * (LIMIT - 100)})
    with server.http() as http:
        assert http.post(TEXT_PATH, content=body, headers=kind).status_code == 200


@pytest.mark.parametrize("data", [b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 100_000])
def test_what_is_no_http_is_refused(server, data):
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(data)
        answer = connection.recv(4096)
    assert answer.startswith(b"HTTP/1.1 400 ") and b'"invalid_http"' in answer


def test_the_description_is_whole(http):
    found = http.get("/openapi.json").json()
    names = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(found)))
    assert {"Error", "ChatRequest", "CompletionRequest"} <= names <= found["components"]["schemas"].keys()
    statuses = [set(o["responses"]) for path in found["paths"].values() for o in path.values()]
    assert all({"200", "400", "503"} <= known and "422" not in known for known in statuses)
    assert set(found["paths"]) >= {CHAT_PATH, TEXT_PATH, "/tokenize", "/v1/models", "/metrics"}


@pytest.mark.parametrize("stream", [False, True])
def test_nothing_of_the_inside_is_told(http, monkeypatch, stream):
    monkeypatch.setattr("serve.http.routes.completions.ask", lambda *a, **k: 1 / 0)
    error = check(http.post(TEXT_PATH, json={"prompt": "x", "stream": stream}), None, 500)
    assert error["code"] == "internal_error" and "division" not in error["message"]
