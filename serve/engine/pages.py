"""Who owns which page. All on the host: the device only sees the tables that come of it."""

from collections.abc import Sequence


class PagePool:
    """Pages 1 .. n-1 with reference counts; page 0 is nobody's.

    A page has one reference per owner: a slot, or, for a prefix that several requests share, each of them.
    """

    def __init__(self, pages: int):
        self._free = list(range(pages - 1, 0, -1))
        self._owners = [0] * pages

    @property
    def total(self) -> int:
        """Pages that can be owned."""
        return len(self._owners) - 1

    @property
    def in_use(self) -> int:
        """Pages that have an owner."""
        return self.total - len(self._free)

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
            self._owners[page] += 1

    def release(self, pages: Sequence[int]) -> tuple[int, ...]:
        """One owner less; returns the pages that are free now. Raises ValueError for a page that is free already."""
        if free := [page for page in pages if not self._owners[page]]:
            raise ValueError(f"pages {free} are free already")
        for page in pages:
            self._owners[page] -= 1
        freed = tuple(page for page in pages if not self._owners[page])
        self._free.extend(reversed(freed))
        return freed
