"""The API key."""

import hashlib
import hmac

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from serve.http.errors import ApiError

OPEN = ("/", "/health", "/ready")  # and the page's own files, which hold nothing secret
OPEN_FOLDER = "/page/"


class Auth:
    """Asks for `Authorization: Bearer KEY` if there are keys. The browser's question before a call needs none."""

    def __init__(self, app: ASGIApp, keys: tuple[str, ...]):
        self._app = app
        self._digests = tuple(map(_digest, keys))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if scope["type"] == "http" and self._digests and not _is_open(scope["path"]):
            given = _key(scope)
            known = False
            for digest in self._digests:  # all are compared, each in constant time
                known |= hmac.compare_digest(_digest(given), digest)
            if not known:
                what = "this API key is not known" if given else "an API key is missing: Authorization: Bearer KEY"
                app = ApiError(401, what, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"}).response()
            scope["state"]["client_key"] = _digest(given).hex()
        await app(scope, receive, send)


def _is_open(path: str) -> bool:
    return path in OPEN or path.startswith(OPEN_FOLDER)


def _key(scope: Scope) -> str:
    scheme, _, key = Headers(scope=scope).get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
