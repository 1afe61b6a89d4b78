"""One client of the soak: what it may do, and what it demands of the answer."""

import json
import random
import socket
import time
from collections.abc import Callable, Iterator, Sequence

import httpx

from tests.soak.tally import Tally

MAX_BODY = 64 * 1024
Answer = tuple[str, str]  # text, finish reason


class Client:
    """Draws one behaviour after another. `wanted` maps (prompt, max_tokens) to what plain decoding gives."""

    def __init__(self, url: str, name: str, wanted: dict[tuple[str, int], Answer], tally: Tally, seed: int):
        self.url, self.name, self.wanted, self.tally = url, name, wanted, tally
        self.random = random.Random(seed)
        # A weight for each.
        self.behaviours: Sequence[tuple[int, Callable[[], None]]] = (
            (6, self.whole),
            (6, self.stream),
            (3, self.sampled),
            (3, self.disconnect),
            (2, self.slow_reader),
            (1, self.oversize),
            (1, self.invalid_utf8),
            (1, self.broken_json),
            (1, self.unknown_field),
            (1, self.half_a_request),
        )

    def run(self) -> None:
        """Until it is over."""
        weights, actions = zip(*self.behaviours, strict=True)
        while not self.tally.over:
            self.attempt(self.random.choices(actions, weights)[0])

    def attempt(self, action: Callable[[], None]) -> None:
        """One behaviour; a broken connection is a fault unless the server is down."""
        was_down = self.tally.down
        try:
            action()
        except (httpx.TransportError, OSError) as error:
            if was_down or self.tally.down:
                self.tally.ended(action.__name__, "cut by the kill")
                time.sleep(0.5)
            else:
                self.tally.fault(f"{action.__name__}: {type(error).__name__}: {error}")

    def whole(self) -> None:
        body, wanted = self._greedy()
        with self._client() as client:
            response = client.post("/v1/completions", json=body)
        if self._answered("whole", response, 200):
            choice = response.json()["choices"][0]
            self._compare("whole", (choice["text"], choice["finish_reason"]), wanted)
            self.tally.ended("whole", "equal to plain decoding", tokens=response.json()["usage"]["completion_tokens"])

    def stream(self) -> None:
        body, wanted = self._greedy()
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        with self._client() as client, client.stream("POST", "/v1/completions", json=body) as response:
            if self._answered("stream", response, 200):
                self._finish_stream("stream", _events(response.iter_lines()), wanted)

    def sampled(self) -> None:
        """The same seed gives the same text, whoever else is there."""
        prompt = self.random.choice([prompt for prompt, _ in self.wanted])
        body = {"model": self.name, "prompt": prompt, "max_tokens": 24, "temperature": 1.0, "seed": 7}
        with self._client() as client:
            response = client.post("/v1/completions", json=body)
        if self._answered("sampled", response, 200):
            choice = response.json()["choices"][0]
            key = (prompt, -7)
            self._compare(
                "sampled",
                (choice["text"], choice["finish_reason"]),
                self.wanted.setdefault(key, (choice["text"], choice["finish_reason"])),
            )
            self.tally.ended("sampled", "equal to itself", tokens=response.json()["usage"]["completion_tokens"])

    def disconnect(self) -> None:
        """Leaves after a few events."""
        body, _ = self._greedy()
        with self._client() as client, client.stream("POST", "/v1/completions", json=body | {"stream": True}) as answer:
            if self._answered("disconnect", answer, 200):
                for _ in zip(range(self.random.randrange(4)), answer.iter_lines(), strict=False):
                    pass
                self.tally.ended("disconnect", "left")

    def slow_reader(self) -> None:
        """Takes a few bytes at a time, and still gets everything."""
        body, wanted = self._greedy()
        data = json.dumps(body | {"stream": True, "stream_options": {"include_usage": True}}).encode()
        with self._connect() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            connection.sendall(self._head(len(data)) + data)
            received = b""
            while chunk := connection.recv(200):
                received += chunk
                time.sleep(0.01)
        head, _, text = received.partition(b"\r\n\r\n")
        status = int(head.split(b" ")[1]) if head else 0
        fields = (line.partition(b": ") for line in head.split(b"\r\n")[1:])
        headers = httpx.Headers([(name, value) for name, _, value in fields])
        if not head:
            raise OSError("the connection was closed without an answer")
        if self.tally.answered("slow_reader", status, (200,), headers.get("retry-after")):
            self._finish_stream("slow_reader", _events(_dechunk(text).decode().splitlines()), wanted)

    def oversize(self) -> None:
        with self._connect() as connection:
            connection.sendall(self._head(MAX_BODY * 4))
            self._expect("oversize", connection, 413)

    def invalid_utf8(self) -> None:
        self._send("invalid_utf8", b'{"model": "tiny", "prompt": "\xff\xfe"}', 400)

    def broken_json(self) -> None:
        self._send("broken_json", b'{"model": "tiny", "prompt": ', 400)

    def unknown_field(self) -> None:
        body = {"model": self.name, "prompt": "x", "max_tokens": 2, "shiny": 1}
        self._send("unknown_field", json.dumps(body).encode(), 400)

    def half_a_request(self) -> None:
        """Promises a body, sends a part of it, and leaves."""
        with self._connect() as connection:
            connection.sendall(self._head(500) + b'{"model": "')
            time.sleep(0.05)
        self.tally.ended("half_a_request", "left")

    def _greedy(self) -> tuple[dict, Answer]:
        prompt, count = self.random.choice([key for key in self.wanted if key[1] > 0])
        body = {"model": self.name, "prompt": prompt, "max_tokens": count, "temperature": 0}
        return body, self.wanted[prompt, count]

    def _finish_stream(self, kind: str, events: Iterator[str], wanted: Answer) -> None:
        text, finish, tokens, done = "", "", 0, False
        for event in events:
            if event == "[DONE]":
                done = True
                continue
            chunk = json.loads(event)
            if "error" in chunk:
                self.tally.fault(f"{kind}: {chunk['error']}")
                return
            if chunk.get("usage"):
                tokens = chunk["usage"]["completion_tokens"]
            for choice in chunk["choices"]:
                text += choice["text"]
                finish = choice["finish_reason"] or finish
        if not done:
            raise OSError("the stream ended before [DONE]")
        self._compare(kind, (text, finish), wanted)
        self.tally.ended(kind, "equal to plain decoding", tokens=tokens)

    def _compare(self, kind: str, got: Answer, wanted: Answer) -> None:
        if got != wanted:
            self.tally.fault(f"{kind}: got {got}, wanted {wanted}")

    def _send(self, kind: str, data: bytes, status: int) -> None:
        with self._connect() as connection:
            connection.sendall(self._head(len(data)) + data)
            self._expect(kind, connection, status)

    def _expect(self, kind: str, connection: socket.socket, status: int) -> None:
        head = connection.recv(4096)
        if not head:
            raise OSError("the connection was closed without an answer")
        if self.tally.answered(kind, int(head.split(b" ")[1]), (status,)):
            self.tally.ended(kind, str(status))

    def _answered(self, kind: str, response: httpx.Response, status: int) -> bool:
        if self.tally.answered(kind, response.status_code, (status,), response.headers.get("retry-after")):
            return True
        # Sooner than it was told, so that the queue is full now and then.
        time.sleep(self.random.uniform(0, 1))
        return False

    def _client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=120, trust_env=False)

    def _connect(self) -> socket.socket:
        host, port = self.url.removeprefix("http://").split(":")
        return socket.create_connection((host, int(port)), timeout=120)

    def _head(self, length: int) -> bytes:
        fields = "Host: 127.0.0.1", "Content-Type: application/json", f"Content-Length: {length}", "Connection: close"
        return ("POST /v1/completions HTTP/1.1\r\n" + "\r\n".join(fields) + "\r\n\r\n").encode()


def _events(lines) -> Iterator[str]:
    """The data of server-sent events."""
    return (line.removeprefix("data: ") for line in lines if line.startswith("data: "))


def _dechunk(data: bytes) -> bytes:
    """A body in HTTP chunks, joined; OSError when the last one is missing."""
    joined = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        count = int(size, 16)
        if count == 0:
            return joined
        joined, data = joined + data[:count], data[count + 2 :]
    raise OSError("the body ended before its last chunk")
