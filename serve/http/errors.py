"""Everything that goes wrong reaches a client in OpenAI's form: {"error": {message, type, param, code}}."""

import logging
import math
from typing import Any

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from serve.engine import QueueFull, QueueTimeout, RequestFailed, Unavailable

LOG = logging.getLogger("dspine.http")

TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
CLIENT_GONE = 499  # never sent: only logs and metrics know it


class ApiError(Exception):
    """An answer that is an error."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ):
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = headers or {}

    def body(self) -> dict[str, Any]:
        """The JSON object."""
        kind = TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        """The whole answer."""
        return JSONResponse(self.body(), self.status, self.headers)


class ClientGone(Exception):
    """Nobody is left to answer."""


def refused(message: str, param: str | None, code: str | None = None) -> ApiError:
    """A request that will never be served, because of the field `param`."""
    return ApiError(400, message, param=param, code=code)


def retry_after(seconds: float) -> dict[str, str]:
    """The header that tells when to come back."""
    return {"Retry-After": str(max(1, math.ceil(seconds)))}


def as_api_error(error: Exception) -> ApiError:
    """What a client is told of any exception; one that nobody expected is logged, and says nothing of the inside."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, Unavailable):
        codes = {QueueFull: "queue_full", QueueTimeout: "queue_timeout"}
        code = codes.get(type(error), "unavailable")
        return ApiError(503, f"{error}; try again later", code=code, headers=retry_after(error.retry_after))
    if isinstance(error, RequestFailed):
        return ApiError(500, f"this request failed: {error}", code="request_failed")
    LOG.error("an error that nobody expected", exc_info=error)
    return ApiError(500, "the server failed on this request; its log says why", code="internal_error")


def handle_errors(app: FastAPI) -> None:
    """Gives errors of routing and of handlers the common form."""

    @app.exception_handler(HTTPException)
    def of_routing(request: Request, error: HTTPException) -> Response:
        path = request.url.path
        if error.status_code == 404:
            found = ApiError(404, f"there is nothing at {path}", code="not_found")
        elif error.status_code == 405:
            allowed = (error.headers or {}).get("allow") or (error.headers or {}).get("Allow", "another")
            found = ApiError(405, f"{path} takes {allowed}, not {request.method}", code="method_not_allowed")
        else:
            found = ApiError(error.status_code, str(error.detail))
        found.headers.update(error.headers or {})
        return found.response()

    @app.exception_handler(ClientGone)
    def of_absence(request: Request, error: ClientGone) -> Response:
        request.scope["state"]["facts"]["outcome"] = "disconnected"
        return Response(status_code=CLIENT_GONE)

    @app.exception_handler(ApiError)
    @app.exception_handler(Unavailable)
    @app.exception_handler(RequestFailed)
    def of_handlers(request: Request, error: Exception) -> Response:
        found = as_api_error(error)
        if found.param is not None:
            request.scope["state"]["facts"]["param"] = found.param
        return found.response()
