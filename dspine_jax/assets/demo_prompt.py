"""A bounded cache with least-recently-used eviction, and statistics about its use."""

import threading
import time
from collections import OrderedDict


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


class Cache:
    """A mapping that keeps at most *maxsize* items.

    When a new item does not fit, the item that was not used for the
    longest time is removed.  If *maxage* is not None, an item that is
    older than *maxage* seconds counts as missing.
    """

    def __init__(self, maxsize=128, maxage=None, timer=time.monotonic):
        if maxsize < 1:
            raise CacheError(f"maxsize must be positive, not {maxsize!r}")
        if maxage is not None and maxage <= 0:
            raise CacheError(f"maxage must be positive, not {maxage!r}")
        self.maxsize = maxsize
        self.maxage = maxage
        self.timer = timer
        self.hits = 0
        self.misses = 0
        self._items = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self):
        return len(self._items)

    def __contains__(self, key):
        return key in self._items

    def __repr__(self):
        return f"{self.__class__.__name__}(maxsize={self.maxsize!r})"

    def get(self, key, default=None):
        """Return the value for *key*, or *default* if it is missing."""
        with self._lock:
            entry = self._items.get(key)
            if entry is None:
                self.misses += 1
                return default
            if self._expired(entry):
                del self._items[key]
                self.misses += 1
                return default
            self._items.move_to_end(key)
            self.hits += 1
            return entry.value

    def set(self, key, value):
        """Store *value* under *key* and remove the oldest item if needed."""
        with self._lock:
            self._items[key] = Entry(value, self.timer())
            self._items.move_to_end(key)
            while len(self._items) > self.maxsize:
                self._items.popitem(last=False)

    def clear(self):
        """Remove all items and reset the statistics."""
        with self._lock:
            self._items.clear()
            self.hits = 0
            self.misses = 0

    def _expired(self, entry):
        if self.maxage is None:
            return False
        return entry.age(self.timer()) > self.maxage

    def delete(self, key):
        """Remove *key* from the cache and return its value."""
        with self._lock:
            entry = self._items.pop(key, None)
        if entry is None:
            raise KeyError(key)
        return entry.value

    def keys(self):
        """Return a list of the keys whose items have not expired."""
        result = []
        with self._lock:
            for key, entry in self._items.items():
                if not self._expired(entry):
                    result.append(key)
