"""A bounded cache with least-recently-used eviction, and statistics about its use."""


class CacheError(Exception):
    """Raised when a cache is created with a size or an age that makes no sense."""


class Entry:
    """A value together with the time at which it was stored."""

    def __init__(self, value, created):
        self.value = value
        self.created = created

    def age(self, now):
        """Return how many seconds ago the value was stored."""
        return now - self.created
