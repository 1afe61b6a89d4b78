"""Connections with limits that hold before there is a request: their number, and how long silence may last."""

import asyncio
import json

from uvicorn.protocols.http.h11_impl import H11Protocol

from serve.http.errors import ApiError
from serve.http.settings import Settings

RETRY_AFTER = 1


class Connection(H11Protocol):
    """One of a server's; `limits` is set by `connection_class`."""

    limits: Settings
    _beginning: asyncio.TimerHandle | None = None
    _writing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Refuses one too many."""
        if len(self.connections) >= self.limits.max_connections:
            self.transport = transport
            transport.write(_raw(503, "Service Unavailable", "too many connections; try again later", "overloaded"))
            transport.close()
            return
        super().connection_made(transport)
        self._expect_request()

    def data_received(self, data: bytes) -> None:
        """A request that has begun must come to its body soon."""
        super().data_received(data)
        self._expect_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing more to wait for."""
        self._clear()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The client is slower than the answer: it gets this much time."""
        super().pause_writing()
        self._writing = self.loop.call_later(self.limits.write_timeout, self.transport.abort)

    def resume_writing(self) -> None:
        """It has caught up."""
        super().resume_writing()
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP is answered in the common form as well."""
        self.transport.write(_raw(400, "Bad Request", msg, "invalid_http"))
        self.transport.close()

    def _expect_request(self) -> None:
        waits = self.cycle is None or self.cycle.response_complete
        if waits and self._beginning is None:
            self._beginning = self.loop.call_later(self.limits.header_timeout, self.transport.close)
        elif not waits and self._beginning is not None:
            self._beginning.cancel()
            self._beginning = None

    def _clear(self) -> None:
        for timer in (self._beginning, self._writing):
            if timer is not None:
                timer.cancel()


def connection_class(settings: Settings) -> type[Connection]:
    """For uvicorn, which makes them itself."""
    return type("LimitedConnection", (Connection,), {"limits": settings})


def _raw(status: int, phrase: str, message: str, code: str) -> bytes:
    body = json.dumps(ApiError(status, message, code=code).body()).encode()
    head = [
        f"HTTP/1.1 {status} {phrase}",
        "content-type: application/json",
        f"content-length: {len(body)}",
        "connection: close",
        *([f"retry-after: {RETRY_AFTER}"] if status == 503 else []),
    ]
    return "\r\n".join([*head, "", ""]).encode() + body
