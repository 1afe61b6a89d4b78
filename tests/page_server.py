"""A stand-in for the server behind the web page: it serves the page and streams what a test wrote down."""

import asyncio
import contextlib
import dataclasses
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import uvicorn

import serve

PAGE = Path(serve.__file__).parent / "http" / "page"
TYPES = {".html": "text/html; charset=utf-8", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
# Stricter than needed: a page that passes strings to the parser, or styles in attributes, fails here.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none';"
    " form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)


@dataclasses.dataclass(frozen=True)
class Answer:
    """What a chat request gets. `pieces` are sent one by one; an event among them is waited for."""

    pieces: list[bytes | threading.Event]
    status: int = 200
    headers: tuple[tuple[bytes, bytes], ...] = ((b"content-type", b"text/event-stream"),)


class StandIn:
    """An ASGI application. Answers are used up in their order."""

    def __init__(self):
        self.answers: list[Answer] = []
        self.requests: list[dict] = []
        self.keys: list[str | None] = []
        self.disconnected = threading.Event()
        self.ready = True
        self.key: str | None = None
        self.url = ""

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] != "http":
            return
        headers = dict(scope["headers"])
        key = headers.get(b"authorization", b"").decode() or None
        match scope["path"]:
            case "/ready":
                await reply(send, 200 if self.ready else 503, as_json({"error": {"message": "not ready: compiling"}}))
            case "/v1/models" if self.key is not None and key != f"Bearer {self.key}":
                await reply(send, 401, as_json({"error": {"message": "The API key is missing or wrong."}}))
            case "/v1/models":
                await reply(send, 200, as_json({"object": "list", "data": [{"id": "tiny-pair", "object": "model"}]}))
            case "/v1/chat/completions":
                self.keys.append(key)
                await self._chat(receive, send)
            case path:
                await self._file(path, send)

    async def _file(self, path: str, send) -> None:
        name = "index.html" if path == "/" else path.removeprefix("/page/")
        file = PAGE / name
        if file.parent != PAGE or not file.is_file():
            await reply(send, 404, b"{}")
            return
        await reply(send, 200, file.read_bytes(), TYPES[file.suffix])

    async def _chat(self, receive, send) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        self.requests.append(json.loads(body))
        answer = self.answers.pop(0)
        await send({"type": "http.response.start", "status": answer.status, "headers": list(answer.headers)})
        sending = asyncio.ensure_future(self._pieces(answer, send))
        leaving = asyncio.ensure_future(receive())
        await asyncio.wait([sending, leaving], return_when=asyncio.FIRST_COMPLETED)
        if not sending.done():
            self.disconnected.set()
        sending.cancel()
        leaving.cancel()

    async def _pieces(self, answer: Answer, send) -> None:
        for piece in answer.pieces:
            while isinstance(piece, threading.Event) and not piece.is_set():
                await asyncio.sleep(0.01)
            if isinstance(piece, bytes):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def reply(send, status: int, body: bytes, kind: str = "application/json") -> None:
    """A whole response."""
    headers = [(b"content-type", kind.encode()), (b"content-security-policy", POLICY.encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def as_json(value: object) -> bytes:
    """UTF-8, not escaped, so that a stream can be cut inside a character."""
    return json.dumps(value, ensure_ascii=False).encode()


def chunk(delta: dict | None = None, origins: str = "", texts: list[str] | None = None, **fields) -> bytes:
    """One event of a stream; `origins` has a letter for each of the `texts`: d, c or b."""
    names = {"d": "draft", "c": "correction", "b": "bonus"}
    choice: dict = {"index": 0, "delta": delta or {}, "finish_reason": fields.pop("finish_reason", None)}
    if texts is None:
        texts = [(delta or {}).get("content", "")] if origins else []
    choice["token_origins"] = [
        {"text": text, "origin": names[letter]} for text, letter in zip(texts, origins, strict=True)
    ]
    return b"data: " + as_json({"id": "a", "choices": [choice], **fields}) + b"\n\n"


def tail(finish_reason: str = "stop", *, usage: dict | None = None, figures: dict | None = None) -> list[bytes]:
    """How a stream ends."""
    usage = usage or {"prompt_tokens": 5, "completion_tokens": 4, "total_tokens": 9}
    last = {"id": "a", "choices": [], "usage": usage}
    if figures:
        last["metrics"] = {"speculative_decoding": figures}
    return [chunk(finish_reason=finish_reason), b"data: " + as_json(last) + b"\n\n", b"data: [DONE]\n\n"]


@contextlib.contextmanager
def running(app: StandIn) -> Iterator[StandIn]:
    """Serves the stand-in."""
    with serving(app) as app.url:
        yield app


@contextlib.contextmanager
def serving(app) -> Iterator[str]:
    """Serves an ASGI application on a free port of the loopback interface; its address."""
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, lifespan="off", log_level="error"))
    server.config.load()
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        if not thread.is_alive():
            raise RuntimeError("the stand-in did not start")
        thread.join(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
