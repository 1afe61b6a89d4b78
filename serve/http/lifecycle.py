"""From the open port to the last answer: a server that drains."""

import asyncio
import math
import socket
import threading

import uvicorn
from fastapi import FastAPI

from serve.http.connections import connection_class
from serve.http.model import ServedModel
from serve.http.settings import Settings

HEADER_BYTES = 32 * 2**10
BACKLOG = 256
LAST_WORDS = 5  # seconds to tell clients, after the drain time, that their answer was cut off


class Server(uvicorn.Server):
    """Listens while the model loads. When told to leave it takes no more requests and finishes those it has."""

    def __init__(self, app: FastAPI, model: ServedModel, settings: Settings):
        super().__init__(
            uvicorn.Config(
                app,
                http=connection_class(settings),
                ws="none",
                loop="asyncio",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=math.ceil(settings.idle_timeout),
                timeout_graceful_shutdown=math.ceil(settings.drain_timeout) + LAST_WORDS,
                h11_max_incomplete_event_size=HEADER_BYTES,
            )
        )
        self._model = model
        self._drain_timeout = settings.drain_timeout

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Running requests have the drain time; then the engine ends them, and their clients are told."""
        self._model.drain()
        stopping = threading.Thread(target=self._model.stop, name="dspine-stop", daemon=True)
        timer = asyncio.get_running_loop().call_later(self._drain_timeout, stopping.start)
        try:
            await super().shutdown(sockets)
        finally:
            timer.cancel()


def listen(host: str, port: int) -> socket.socket:
    """Raises OSError with what stands in the way."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=BACKLOG)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it."""
    return host in ("localhost", "::1") or host.startswith("127.")
