"""The ASGI side of a stream: sends while somebody reads, stops when nobody does."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from serve.http.errors import ClientGone

HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


async def unless_gone[T](request: Request, work: Awaitable[T]) -> T:
    """What the work returns or raises. Cancels it and raises ClientGone when the client leaves first.

    Call it after the body was read: from then on there is only one thing to be heard of the client.
    """
    return await _until_gone(request.receive, work)


class ServerSentEvents(Response):
    """Chunks of which the first was made already, so that an error before it could be told by the status."""

    media_type = "text/event-stream"

    def __init__(self, first: bytes, rest: AsyncGenerator[bytes], gone: Callable[[], None]):
        super().__init__(headers=HEADERS)
        del self.headers["content-length"]
        self._first = first
        self._rest = rest
        self._gone = gone

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await _until_gone(receive, self._send(send))
        except ClientGone:
            self._gone()

    async def _send(self, send: Send) -> None:
        # `send` waits while the client reads slowly; the engine never does.
        async with contextlib.aclosing(self._rest):
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": self._first, "more_body": True})
            async for chunk in self._rest:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _until_gone[T](receive: Callable[[], Awaitable[Any]], work: Awaitable[T]) -> T:
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        for one in (task, gone):
            one.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnect(receive: Callable[[], Awaitable[Any]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
