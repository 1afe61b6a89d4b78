"""From choices to the HTTP response, streamed or whole."""

from fastapi import Request
from starlette.responses import JSONResponse, Response

from serve.http.answer.answer import Answer
from serve.http.answer.sse import ServerSentEvents, unless_gone
from serve.http.answer.stream import stream
from serve.http.answer.whole import whole
from serve.http.errors import ClientGone, as_api_error


async def respond(request: Request, answer: Answer, *, streamed: bool, keep_alive: float) -> Response:
    """Waits for the first chunk or for the whole answer; cancels it all when the client leaves."""

    def gone() -> None:
        answer.observe("disconnected")

    try:
        if not streamed:
            return JSONResponse(await unless_gone(request, whole(answer)))
        chunks = stream(answer, keep_alive)
        # Its status can still tell of an error before the first chunk.
        return ServerSentEvents(await unless_gone(request, anext(chunks)), chunks, gone)
    except ClientGone:
        gone()
        raise
    except Exception as error:
        answer.observe("unavailable" if as_api_error(error).status == 503 else "error")
        raise
