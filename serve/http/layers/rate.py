"""How many requests one client may send."""

import collections
import time
from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send

from serve.http.errors import ApiError, retry_after

MAX_CLIENTS = 10_000


class Buckets:
    """A token bucket per client, at most so many: the one unseen for longest is forgotten."""

    def __init__(self, per_minute: float, burst: int, clock: Callable[[], float] = time.monotonic):
        self._rate = per_minute / 60
        self._burst = burst
        self._clock = clock
        self._buckets: collections.OrderedDict[str, tuple[float, float]] = collections.OrderedDict()

    def take(self, client: str) -> float:
        """0 if this client may send a request now, otherwise the seconds until it may."""
        now = self._clock()
        left, then = self._buckets.pop(client, (float(self._burst), now))
        left = min(self._burst, left + (now - then) * self._rate)
        allowed = left >= 1
        self._buckets[client] = (left - allowed, now)
        if len(self._buckets) > MAX_CLIENTS:
            self._buckets.popitem(last=False)
        return 0.0 if allowed else (1 - left) / self._rate


class Rate:
    """Counts POST requests. A client is its API key, or else its address."""

    def __init__(self, app: ASGIApp, per_minute: float, burst: int):
        self._app = app
        self._buckets = Buckets(per_minute, burst) if per_minute else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if self._buckets is not None and scope["type"] == "http" and scope["method"] == "POST":
            client = scope["state"].get("client_key") or (scope.get("client") or ("",))[0]
            if wait := self._buckets.take(client):
                app = ApiError(
                    429, "too many requests; slow down", code="rate_limit_exceeded", headers=retry_after(wait)
                ).response()
        await app(scope, receive, send)
