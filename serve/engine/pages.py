"""Who owns which page. All on the host: the device only sees the tables that come of it."""

from collections.abc import Mapping, Sequence


class PagePool:
    """Pages 1 .. n-1 with reference counts; page 0 is nobody's.

    A page has one reference per owner: each slot that reads it, and the prefix cache if it keeps it. A page that only
    the cache owns is idle: it can be had by dropping it.
    """

    def __init__(self, pages: int):
        self._free = list(range(pages - 1, 0, -1))
        self._owners = [0] * pages
        self._kept = [False] * pages
        self._spoilt: set[int] = set()
        self._idle = 0

    @property
    def total(self) -> int:
        """Pages that can be owned."""
        return len(self._owners) - 1

    @property
    def free(self) -> int:
        """Pages without an owner."""
        return len(self._free)

    @property
    def idle(self) -> int:
        """Pages that only the prefix cache owns."""
        return self._idle

    @property
    def in_use(self) -> int:
        """Pages that some slot owns."""
        return self.total - len(self._free) - self._idle

    def owners(self, page: int) -> int:
        """References to a page."""
        return self._owners[page]

    def is_idle(self, page: int) -> bool:
        """Whether only the prefix cache owns it."""
        return self._kept[page] and self._owners[page] == 1

    def allocate(self, count: int) -> tuple[int, ...] | None:
        """Pages with one owner each; None when there are not so many, and nothing is taken."""
        if count > len(self._free):
            return None
        taken = tuple(self._free.pop() for _ in range(count))
        for page in taken:
            self._owners[page] = 1
        return taken

    def share(self, pages: Sequence[int]) -> None:
        """One more owner for pages that have some. Raises ValueError for a free page."""
        if free := [page for page in pages if not self._owners[page]]:
            raise ValueError(f"pages {free} are free: allocate them")
        for page in pages:
            self._idle -= self.is_idle(page)
            self._owners[page] += 1

    def release(self, pages: Sequence[int]) -> tuple[int, ...]:
        """One owner less; returns the pages that are free now.

        Raises ValueError for a page that no slot owns.
        """
        if free := [page for page in pages if self._owners[page] <= self._kept[page]]:
            raise ValueError(f"pages {free} are free already, or the prefix cache's alone")
        for page in pages:
            self._owners[page] -= 1
            self._idle += self.is_idle(page)
        return self._freed(pages)

    def keep(self, pages: Sequence[int]) -> None:
        """The prefix cache becomes one more owner. Raises ValueError for a page that is free or kept already."""
        if wrong := [page for page in pages if not self._owners[page] or self._kept[page]]:
            raise ValueError(f"pages {wrong} are free or kept already")
        for page in pages:
            self._owners[page] += 1
            self._kept[page] = True

    def drop(self, pages: Sequence[int]) -> tuple[int, ...]:
        """The prefix cache keeps them no longer; returns the pages that are free now.

        Raises ValueError for a page that it does not keep.
        """
        if wrong := [page for page in pages if not self._kept[page]]:
            raise ValueError(f"pages {wrong} are not kept")
        for page in pages:
            self._idle -= self.is_idle(page)
            self._owners[page] -= 1
            self._kept[page] = False
        return self._freed(pages)

    def spoil(self, pages: Sequence[int]) -> None:
        """They may hold numbers that are not finite, so they must be zeroed when they are free."""
        self._spoilt.update(pages)

    def take_spoilt(self) -> tuple[int, ...]:
        """The spoilt pages that are free: to be zeroed now, before any is allocated. They count as clean then."""
        free = tuple(sorted(page for page in self._spoilt if not self._owners[page]))
        self._spoilt.difference_update(free)
        return free

    def audit(self, slots: Mapping[int, int], kept: Sequence[int]) -> None:
        """Raises RuntimeError unless these are the owners: how many slots each page has, and the cache's pages."""
        pages = range(1, len(self._owners))
        wrong = {
            "owned by others": [p for p in pages if self._owners[p] != slots.get(p, 0) + kept.count(p)],
            "kept by mistake": [p for p in pages if self._kept[p] != (kept.count(p) == 1)],
            "free by mistake": [p for p in pages if self._free.count(p) != (self._owners[p] == 0)],
            "spoilt and free": [p for p in self._spoilt if not self._owners[p]],
        }
        if any(wrong.values()) or self._owners[0] or 0 in self._free:
            raise RuntimeError(f"pages do not add up: {wrong}, and page 0 has {self._owners[0]} owners")
        idle, used = sum(map(self.is_idle, pages)), sum(slots.get(p, 0) > 0 for p in pages)
        if (idle, used) != (self.idle, self.in_use):
            raise RuntimeError(
                f"{idle} pages are idle and {used} in use, but {self.idle} and {self.in_use} are counted"
            )

    def _freed(self, pages: Sequence[int]) -> tuple[int, ...]:
        freed = tuple(page for page in pages if not self._owners[page])
        self._free.extend(reversed(freed))
        return freed
