"""How a server behaves towards its clients. Nothing here changes a token."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Raises ValueError for values that cannot work. All times are seconds."""

    api_keys: tuple[str, ...] = ()  # any of these opens the server; none: it is open
    allowed_hosts: tuple[str, ...] = ()  # names that a request's Host may have; none: any
    cors_origins: tuple[str, ...] = ()  # web pages elsewhere that may call; none: CORS is off
    max_body: int = 8 * 2**20  # bytes of a request's body
    body_timeout: float = 30.0  # for a whole body to arrive
    header_timeout: float = 15.0  # for the first request of a connection to begin
    write_timeout: float = 60.0  # for a client to take what was sent, before it is cut off
    idle_timeout: float = 30.0  # between two requests of a connection
    max_connections: int = 512
    rate_limit: float = 0.0  # requests per minute and client; 0: no limit
    rate_burst: int = 10  # requests that may come at once under a rate limit
    keep_alive: float = 10.0  # an SSE comment is sent after this long without an event
    drain_timeout: float = 30.0  # for running requests to finish at shutdown
    max_choices: int = 128  # prompts times n of one request
    log_prompts: bool = False

    def __post_init__(self) -> None:
        for name in ("body_timeout", "header_timeout", "write_timeout", "idle_timeout", "keep_alive"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)!r}, wanted seconds above 0")
        for name in ("max_body", "max_connections", "rate_burst", "max_choices"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)!r}, wanted at least 1")
        for name in ("rate_limit", "drain_timeout"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} is {getattr(self, name)!r}, wanted at least 0")
        if not all(self.api_keys):
            raise ValueError("an API key is empty; leave it out to run without one")
