"""The Host header, checked: a web page elsewhere may point its own name at this machine, and then reach it."""

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from serve.http.errors import ApiError

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


class Hosts:
    """Lets requests to these names through, whatever the port; all of them when there are none."""

    def __init__(self, app: ASGIApp, allowed: tuple[str, ...]):
        self._app = app
        self._allowed = frozenset(name.lower() for name in allowed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if scope["type"] == "http" and self._allowed and _name(scope) not in self._allowed:
            error = ApiError(
                403,
                "the Host header names another host than this server's; start it with --allowed-host to allow it",
                code="host_not_allowed",
            )
            app = error.response()
        await app(scope, receive, send)


def _name(scope: Scope) -> str:
    host = Headers(scope=scope).get("host", "").lower()
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() else host
