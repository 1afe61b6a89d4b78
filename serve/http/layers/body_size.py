"""A limit on a request's body that holds while it is read, whether or not its length was told."""

import asyncio
import contextlib

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serve.http.errors import ApiError

# A client that is still sending does not look at the answer. So a little of what is too much is read and dropped.
DROPPED = 4  # times the limit
DROP_SECONDS = 2.0


class BodySize:
    """Raises 413 out of `receive`, for the reader of the body to pass on."""

    def __init__(self, app: ASGIApp, limit: int):
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        told = Headers(scope=scope).get("content-length", "")
        if told.isdigit() and int(told[:20]) > self._limit:
            await self._drop(receive, int(told[:20]))
            await self._error().response()(scope, receive, send)
            return
        read = 0

        async def counted() -> Message:
            nonlocal read
            message = await receive()
            if message["type"] == "http.request":
                read += len(message.get("body", b""))
                if read > self._limit:
                    if message.get("more_body"):
                        await self._drop(receive, self._limit * DROPPED)
                    raise self._error()
            return message

        await self._app(scope, counted, send)

    async def _drop(self, receive: Receive, expected: int) -> None:
        if expected > self._limit * DROPPED:
            return
        dropped = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DROP_SECONDS):
                while dropped < self._limit * DROPPED:
                    message = await receive()
                    dropped += len(message.get("body", b""))
                    if not message.get("more_body"):
                        return

    def _error(self) -> ApiError:
        return ApiError(
            413, f"the body has more than {self._limit} bytes", code="body_too_large", headers={"Connection": "close"}
        )
