"""Keys, hosts, limits, logs, readiness and leaving."""

import io
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from serve.http import logs
from serve.http.layers.rate import MAX_CLIENTS, Buckets
from serve.http.options import KEY_VARIABLE, build_parser, settings_of, sizes_of, source_of
from serve.http.settings import Settings
from tests.http_server import PATIENCE, served, text_model
from tests.peers import ROOT
from tests.scripted_engine import ScriptedEngine, saying
from tests.text_pair import END, VOCAB

BODY = {"prompt": "hello"}
PATH = "/v1/completions"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.getbasetemp()


@pytest.fixture(scope="module")
def text(folder):
    return text_model(folder)


def engine_of(text, **options) -> ScriptedEngine:
    return ScriptedEngine(VOCAB, (END,), script=saying([*text.encode("fine and long"), END], pieces=1), **options)


def test_keys_open_everything_but_health_and_the_page(folder, text):
    with served(engine_of(text), folder, Settings(api_keys=("first", "sécond"))) as server, server.http() as http:
        for path in ("/v1/models", "/metrics", "/openapi.json"):
            answer = http.get(path)
            assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
            assert answer.headers["www-authenticate"] == "Bearer"
            assert http.get(path, headers={"authorization": "Bearer first"}).status_code == 200
        assert http.post(PATH, json=BODY, headers={b"authorization": "bearer sécond".encode()}).status_code == 200
        for wrong in ("Bearer firs", "Bearer first2", "Basic first", "first", "Bearer"):
            assert http.post(PATH, json=BODY, headers={"authorization": wrong}).status_code == 401
        assert http.get("/health").status_code == http.get("/ready").status_code == 200
        assert http.get("/page/x.js").status_code == 404


def test_hosts_and_origins(folder, text):
    settings = Settings(allowed_hosts=("localhost", "127.0.0.1", "[::1]"), cors_origins=("https://a.example",))
    with served(engine_of(text), folder, settings) as server, server.http() as http:
        for host, status in (("localhost:99", 200), ("[::1]:80", 200), ("evil.example", 403), ("localhost.evil", 403)):
            assert http.get("/v1/models", headers={"host": host}).status_code == status
        allowed = http.get("/health", headers={"origin": "https://a.example"}).headers
        assert allowed["access-control-allow-origin"] == "https://a.example"
        other = http.get("/health", headers={"origin": "https://b.example"}).headers
        assert "access-control-allow-origin" not in other
    with served(engine_of(text), folder) as server, server.http() as http:
        assert "access-control-allow-origin" not in http.get("/health", headers={"origin": "https://a.example"}).headers
        assert http.options(PATH, headers={"origin": "x", "access-control-request-method": "POST"}).status_code == 405


def test_a_rate_limit_counts_each_client_alone():
    now = 0.0
    buckets = Buckets(60, 2, lambda: now)
    assert [buckets.take("a") for _ in range(3)] == [0, 0, 1.0]
    assert buckets.take("b") == 0
    now = 0.5
    assert buckets.take("a") == 0.5
    now = 1.0
    assert (buckets.take("a"), buckets.take("a")) == (0, 1.0)
    for client in range(MAX_CLIENTS + 10):
        buckets.take(str(client))
    assert len(buckets._buckets) == MAX_CLIENTS


def test_a_rate_limit_says_when_to_come_back(folder, text):
    settings = Settings(rate_limit=6, rate_burst=2)
    with served(engine_of(text), folder, settings) as server, server.http() as http:
        answers = [http.post(PATH, json=BODY) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        assert answers[2].json()["error"]["code"] == "rate_limit_exceeded"
        assert 8 <= int(answers[2].headers["retry-after"]) <= 10
        assert http.get("/health").status_code == 200


def test_connections_are_limited_and_silent_ones_closed(folder, text):
    settings = Settings(max_connections=2, header_timeout=0.5)
    with served(engine_of(text), folder, settings) as server:
        held = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(2)]
        held[0].sendall(b"GET / HT")
        with socket.create_connection(("127.0.0.1", server.port)) as third:
            answer = third.recv(4096)
        assert answer.startswith(b"HTTP/1.1 503 ") and b"retry-after: 1" in answer and b'"overloaded"' in answer
        for connection in held:
            connection.settimeout(PATIENCE)
            assert connection.recv(16) == b""
            connection.close()
        with server.http() as http:
            assert http.get("/health").status_code == 200


def test_a_body_that_does_not_come_is_not_waited_for(folder, text):
    with (
        served(engine_of(text), folder, Settings(body_timeout=0.2)) as server,
        socket.create_connection(("127.0.0.1", server.port)) as connection,
    ):
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
        )
        connection.settimeout(PATIENCE)
        assert connection.recv(4096).startswith(b"HTTP/1.1 408 ")


def test_a_server_listens_before_it_is_ready(folder):
    with served(None, folder) as server, server.http() as http:
        server.model.progress = "reading the weights"
        answer = http.get("/ready")
        assert answer.status_code == 503 and "reading the weights" in answer.json()["error"]["message"]
        assert answer.headers["retry-after"] == "5"
        answer = http.post(PATH, json=BODY)
        assert answer.status_code == 503 and answer.headers["retry-after"] == "5"
        assert http.get("/health").json() == {"status": "ok", "engine": "loading"}
        assert "dspine:ready 0.0" in http.get("/metrics").text
        assert http.get("/v1/models").json()["data"][0]["id"] == "tiny"


def test_a_broken_engine_is_no_longer_healthy(folder, text):
    engine = engine_of(text)
    with served(engine, folder) as server, server.http() as http:
        engine.state = "broken"
        assert http.get("/health").status_code == http.get("/ready").status_code == 503
        assert http.post(PATH, json=BODY).status_code == 503


def test_leaving_finishes_what_runs_and_takes_nothing_new(folder, text):
    release = threading.Event()
    engine = engine_of(text, step=lambda: release.wait(PATIENCE))
    found = []
    with served(engine, folder, Settings(drain_timeout=PATIENCE)) as server, server.http() as http:
        asking = threading.Thread(target=lambda: found.append(http.post(PATH, json=BODY)))
        asking.start()
        while not engine.running:
            time.sleep(0.005)
        server.server.should_exit = True
        end = time.monotonic() + PATIENCE
        while engine.state != "draining":
            assert time.monotonic() < end
            time.sleep(0.005)
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", server.port))
        release.set()
        asking.join(PATIENCE)
    assert found[0].json()["choices"][0]["text"] == "fine and long"


@pytest.mark.parametrize("stream", [False, True])
def test_what_lasts_longer_than_the_drain_is_told_so(folder, text, stream):
    engine = ScriptedEngine(VOCAB, (END,), script=saying(text.encode("a") * 10_000, pieces=1))
    engine.step = lambda: time.sleep(0.01)
    found = []
    with served(engine, folder, Settings(drain_timeout=0.3)) as server, server.http() as http:
        asking = threading.Thread(target=lambda: found.append(http.post(PATH, json=BODY | {"stream": stream})))
        asking.start()
        while not engine.running:
            time.sleep(0.005)
        time.sleep(0.1)
        server.leave()
        asking.join(PATIENCE)
    engine.wait_idle()
    if stream:
        last = found[0].text.strip().split("\n\n")[-1]
        assert "shutting down" in json.loads(last.removeprefix("data: "))["error"]["message"]
    else:
        assert found[0].status_code == 503 and "shutting down" in found[0].text


@pytest.mark.parametrize("log_prompts", [False, True])
def test_logs_are_json_and_hold_no_secrets(folder, text, log_prompts):
    names = (*logs.LOGGERS, "uvicorn.error")
    before = {name: (logging.getLogger(name).handlers, logging.getLogger(name).propagate) for name in names}
    stream = io.StringIO()
    logs.set_up(stream)
    try:
        settings = Settings(api_keys=("s3cret-key",), log_prompts=log_prompts)
        with served(engine_of(text), folder, settings) as server, server.http() as http:
            headers = {"authorization": "Bearer s3cret-key", "x-request-id": "mine-1"}
            answer = http.post(PATH, json={"prompt": "a private matter"}, headers=headers)
            assert answer.headers["x-request-id"] == "mine-1"
            odd = http.post(PATH, json={"prompt": "x", "no": 1}, headers=headers | {"x-request-id": "a\tb" * 9})
            assert odd.headers["x-request-id"].startswith("req-")
    finally:
        for name, (handlers, propagate) in before.items():
            logging.getLogger(name).handlers, logging.getLogger(name).propagate = handlers, propagate
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    first = next(line for line in lines if line.get("request_id") == "mine-1")
    assert first["path"] == PATH and first["status"] == 200 and first["outcome"] == "stop"
    assert first["completion_tokens"] == len(text.encode("fine and long")) + 1
    assert any(line.get("param") == "no" and line["outcome"] == "refused" for line in lines)
    assert "s3cret-key" not in stream.getvalue()
    assert ("a private matter" in stream.getvalue()) == log_prompts


def test_the_page_comes_with_rules_for_the_browser(folder, text, tmp_path, monkeypatch):
    monkeypatch.setattr("serve.http.routes.page.FOLDER", tmp_path)
    with served(engine_of(text), folder) as server, server.http() as http:
        assert http.get("/").status_code == 404
        (tmp_path / "index.html").write_text("<p>hi")
        (tmp_path / "page.js").write_text("1")
        (tmp_path / "notes.txt").write_text("1")
        answer = http.get("/")
        assert answer.text == "<p>hi" and answer.headers["content-type"] == "text/html; charset=utf-8"
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert http.get("/page/page.js").headers["content-type"] == "text/javascript; charset=utf-8"
        assert http.get("/page/notes.txt").status_code == 404


def parsed(*arguments: str, environment=None):
    parser = build_parser()
    found = parser.parse_args(["m", *arguments])
    return source_of(parser, found), sizes_of(parser, found), settings_of(parser, found, environment or {})


def test_arguments_become_settings(tmp_path):
    source, sizes, settings = parsed()
    assert (source.name, sizes.slots, sizes.context, settings) == (
        "m", 8, None, Settings(allowed_hosts=("localhost", "127.0.0.1", "[::1]")),
    )  # fmt: skip
    keys = tmp_path / "keys"
    keys.write_text("one\n\n two \n")
    _, sizes, settings = parsed(
        "--host", "0.0.0.0", "--api-key-file", str(keys), "--verify-width", "4", "--verification", "block",
        "--drain-timeout", "3", "--log-prompts", "--cors-origin", "https://a.example", "--context", "99",
    )  # fmt: skip
    assert settings.api_keys == ("one", "two") and settings.allowed_hosts == ()
    assert (settings.drain_timeout, settings.log_prompts) == (3.0, True)
    assert (sizes.verification.widths, sizes.verification.method, sizes.context) == ((4,), "block", 99)
    assert parsed(environment={KEY_VARIABLE: "k"})[2].api_keys == ("k",)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--target", "t"], "belong together"),
        (["--target", "t", "--draft", "d"], "one model"),
        (["--verify-width", "auto"], "verify-width"),
        (["--slots", "0"], "slots is 0"),
        (["--chunk", "100"], "chunk"),
        (["--mem-fraction", "1.5"], "mem-fraction"),
        (["--max-body", "0"], "max_body"),
        (["--api-key-file", "/no/such/file"], "No such file"),
    ],
)
def test_wrong_arguments_end_the_program(arguments, what, capsys):
    with pytest.raises(SystemExit) as found:
        parsed(*arguments)
    assert found.value.code == 2 and what in capsys.readouterr().err


# The whole command but for the model: a scripted engine takes its place.
COMMAND = """
import os, sys
from pathlib import Path
import jax
from serve.http import cli
from serve.http.model import Parts
from tests.http_server import text_model
from tests.scripted_engine import ScriptedEngine, saying

def open_model(model, source, sizes, text, template):
    # JAX refuses this once it has looked for devices.
    jax.config.update("jax_num_cpu_devices", 2)
    assert os.environ["XLA_CLIENT_MEM_FRACTION"] == "0.3", os.environ
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION" not in os.environ
    if source.folder.name == "broken":
        raise ValueError("these weights are broken")
    model.open(Parts(ScriptedEngine(300, (298,), script=saying([298])), text, template))

cli.open_model = open_model
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.mark.parametrize("name", ["fine", "broken"])
def test_the_command_sets_memory_first_serves_and_leaves_when_told(folder, tmp_path, name, text):
    made = tmp_path / name / "target"
    made.mkdir(parents=True)
    text.tokenizer.save(str(made / "tokenizer.json"))
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, str(made.parent), "--port", "0", "--mem-fraction", "0.3"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.9", KEY_VARIABLE: "k3y"},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    lines = []
    try:
        if name == "fine":
            while "url" not in (line := json.loads(process.stderr.readline())):
                lines.append(line)
            port = int(line["url"].rpartition(":")[2])
            with socket.create_connection(("127.0.0.1", port)) as connection:
                connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                assert connection.recv(4096).startswith(b"HTTP/1.1 200 ")
            process.send_signal(signal.SIGTERM)
        rest = process.communicate(timeout=PATIENCE)[1]
    finally:
        process.kill()
    assert process.returncode == (0 if name == "fine" else 1), rest
    assert any("only texts are continued" in line["message"] for line in lines) or name == "broken"
    assert ("these weights are broken" in rest) == (name == "broken")
    assert "k3y" not in rest and "Traceback" not in rest
