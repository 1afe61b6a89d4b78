"""What can go wrong with a request that was well formed."""


class Unavailable(RuntimeError):
    """Not now. A server answers 503 and tells the client to come back after `retry_after` seconds."""

    def __init__(self, message: str, retry_after: float):
        super().__init__(message)
        self.retry_after = retry_after


class QueueFull(Unavailable):
    """Too many requests wait already."""


class QueueTimeout(Unavailable):
    """The request waited too long for a slot or for pages."""


class EngineStopped(Unavailable):
    """The engine takes no requests: not started, draining, stopped or broken."""


class RequestFailed(RuntimeError):
    """The request ended with an error of its own; others were not touched."""
