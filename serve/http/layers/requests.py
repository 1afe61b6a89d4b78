"""A number, a line in the log and a place in the metrics for every request; an answer for what nobody caught."""

import logging
import re
import secrets
import time
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serve.http.errors import CLIENT_GONE, as_api_error
from serve.http.metrics import Metrics

LOG = logging.getLogger("dspine.http")
GIVEN = re.compile(rb"[A-Za-z0-9._-]{1,128}")
PROBES = ("/health", "/ready", "/metrics")  # asked every few seconds: no news
GENERATING = ("/v1/chat/completions", "/v1/completions")


class Requests:
    """Puts `facts` into the state of each request; what is added there goes to the log."""

    def __init__(self, app: ASGIApp, metrics: Metrics, paths: frozenset[str]):
        self._app = app
        self._metrics = metrics
        self._paths = paths  # others are counted together: a client could invent any number of them

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        number = _number(scope)
        facts: dict[str, Any] = {}
        scope.setdefault("state", {})["facts"] = facts
        status, start = CLIENT_GONE, time.perf_counter()

        async def numbered(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", number.encode())]
            await send(message)

        self._metrics.open_requests.inc()
        try:
            await self._app(scope, receive, numbered)
        except Exception as error:
            found = as_api_error(error)
            if status == CLIENT_GONE:
                await found.response()(scope, receive, numbered)
        finally:
            self._metrics.open_requests.dec()
            self._end(scope, number, status, time.perf_counter() - start, facts)

    def _end(self, scope: Scope, number: str, status: int, seconds: float, facts: dict[str, Any]) -> None:
        path = scope["path"]
        known = path if path in self._paths else "other"
        self._metrics.responses.labels(known, status).inc()
        if path in GENERATING and scope["method"] == "POST":
            facts.setdefault("outcome", _outcome(status))
            self._metrics.requests.labels(path, facts["outcome"]).inc()
        client = scope.get("client")
        LOG.log(
            logging.DEBUG if path in PROBES else logging.INFO,
            "request",
            extra={
                "fields": {
                    "request_id": number,
                    "client": client[0] if client else None,
                    "method": scope["method"],
                    "path": path[:200],
                    "status": status,
                    "seconds": round(seconds, 4),
                    **facts,
                }
            },
        )


def _number(scope: Scope) -> str:
    given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
    return given.decode("ascii") if GIVEN.fullmatch(given) else f"req-{secrets.token_hex(8)}"


def _outcome(status: int) -> str:
    if status == CLIENT_GONE:
        return "disconnected"
    return "unavailable" if status == 503 else "error" if status >= 500 else "refused"
