"""Which prefixes of earlier prompts can be taken up again. All on the host: an entry names pages and a snapshot.

A tree with one node per chunk of tokens; its path from the root spells a prefix, and it keeps the chunk's pages. Some
nodes have an entry: the number of a snapshot of what a slot carries there. Every leaf has one, since pages are of no
use without.
"""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from serve.engine.pages import PagePool


@dataclasses.dataclass(frozen=True)
class Found:
    """The longest prefix of a prompt that has an entry."""

    length: int = 0  # tokens, whole chunks
    pages: tuple[int, ...] = ()
    snapshot: int | None = None  # None: there is no such prefix
    known: int = 0  # tokens up to which other prompts were the same, at least `length`


class _Node:
    """One chunk. `used` is when its entry was of use last; `snapshot` None: it has no entry."""

    __slots__ = ("block", "children", "pages", "parent", "snapshot", "used")

    def __init__(self, parent: "_Node | None", block: bytes, pages: tuple[int, ...]):
        self.parent = parent
        self.block = block
        self.pages = pages
        self.children: dict[bytes, _Node] = {}
        self.snapshot: int | None = None
        self.used = 0


class PrefixCache:
    """At most `room` snapshots, numbered from 0. Tokens are compared one by one: nothing rests on a digest."""

    def __init__(self, pool: PagePool, room: int, chunk: int, page: int):
        self._pool = pool
        self._chunk = chunk
        self._pages = chunk // page  # of a node
        self._room = room
        self._unused = list(range(room - 1, -1, -1))
        self._root = _Node(None, b"", ())
        self._entries: dict[int, _Node] = {}
        self._clock = 0
        self.evictions = 0  # entries that had to go for want of snapshots or pages

    @property
    def room(self) -> int:
        """Snapshots that there can be."""
        return self._room

    @property
    def entries(self) -> int:
        """Prefixes that can be taken up."""
        return len(self._entries)

    @property
    def snapshots(self) -> int:
        """Snapshots that are an entry's or reserved for one."""
        return self._room - len(self._unused)

    def find(self, prompt: np.ndarray) -> Found:
        """Looks and changes nothing."""
        found, pages = Found(), []
        for depth, node in enumerate(self._path(prompt), start=1):
            pages += node.pages
            if node.snapshot is not None:
                found = Found(depth * self._chunk, tuple(pages), node.snapshot)
        return dataclasses.replace(found, known=len(pages) // self._pages * self._chunk)

    def use(self, snapshot: int) -> None:
        """An entry is of use now."""
        self._clock += 1
        self._entries[snapshot].used = self._clock

    def boundaries(self, prompt: np.ndarray, found: Found) -> frozenset[int]:
        """Where a request should leave a snapshot, after these many tokens of its prompt.

        At the end of its last whole chunk, where a longer prompt goes on; and where it parts with earlier prompts,
        since what is common to two is likely to come a third time.
        """
        last = len(prompt) // self._chunk * self._chunk
        return (
            frozenset(length for length in (found.known, last) if length > found.length) if self._room else frozenset()
        )

    def has(self, prompt: np.ndarray, length: int) -> bool:
        """Whether the first `length` tokens have an entry."""
        return self.find(prompt[:length]).length == length

    def reserve(self) -> int | None:
        """A snapshot for an entry to come; the entry that was of no use for longest may go for it.

        None when every snapshot is reserved.
        """
        if not self._unused:
            if not self._entries:
                return None
            self._evict(min(self._entries.values(), key=lambda node: node.used))
        return self._unused.pop()

    def give_back(self, snapshot: int) -> None:
        """What was reserved is not needed."""
        self._unused.append(snapshot)

    def add(self, prompt: np.ndarray, length: int, pages: Sequence[int], snapshot: int) -> None:
        """Makes an entry of a reserved snapshot for the first `length` tokens, which are in these pages.

        What the cache has already it keeps; the same tokens in other pages are the same numbers.
        """
        node = self._root
        for start in range(0, length, self._chunk):
            block = prompt[start : start + self._chunk].tobytes()
            child = node.children.get(block)
            if child is None:
                first = start // self._chunk * self._pages
                child = _Node(node, block, tuple(pages[first : first + self._pages]))
                self._pool.keep(child.pages)
                node.children[block] = child
            node = child
        if node.snapshot is None:
            node.snapshot = snapshot
            self._entries[snapshot] = node
        else:
            self.give_back(snapshot)
        self.use(node.snapshot)

    def make_room(self, count: int) -> None:
        """Evicts entries until `count` pages are free. Raises ValueError, before any goes, when they cannot be."""
        if count > self._pool.free + self._pool.idle:
            raise ValueError(f"{count} pages cannot be freed: there are {self._pool.free} and {self._pool.idle} idle")
        while self._pool.free < count:
            leaves = (node for node in self._entries.values() if not node.children)
            # A leaf whose pages some slot owns frees none by itself; it goes only if it stands before those that do.
            self._evict(min(leaves, key=lambda node: (not self._pool.is_idle(node.pages[0]), node.used)))

    def forget(self, prompt: np.ndarray) -> None:
        """Removes the entries of all prefixes of a prompt that is not to be trusted."""
        for node in list(self._path(prompt)):
            if node.snapshot is not None:
                self._remove(node)

    def clear(self) -> None:
        """Removes all entries; no page is kept then."""
        for node in list(self._entries.values()):
            self._remove(node)

    def kept(self) -> Iterator[int]:
        """Every page that the cache owns, as often as it does."""
        nodes = [self._root]
        while nodes:
            node = nodes.pop()
            yield from node.pages
            nodes += node.children.values()

    def audit(self, reserved: Sequence[int]) -> None:
        """Raises RuntimeError unless the tree is sound and these snapshots, and no others, are reserved."""
        known = sorted([*self._unused, *self._entries, *reserved])
        if known != list(range(self._room)):
            raise RuntimeError(f"snapshots 0 to {self._room - 1} do not add up: {known}")
        nodes, entries = [self._root], {}
        while nodes:
            node = nodes.pop()
            nodes += node.children.values()
            if node.snapshot is not None:
                entries[node.snapshot] = node
            elif not node.children and node is not self._root:
                raise RuntimeError(f"a leaf has no entry; its pages are {node.pages}")
            if any(child.parent is not node or child.block != block for block, child in node.children.items()):
                raise RuntimeError(f"a child of the node of pages {node.pages} belongs elsewhere")
        if entries != self._entries:
            raise RuntimeError(f"the tree has the entries {sorted(entries)}, but {sorted(self._entries)} are listed")

    def _path(self, prompt: np.ndarray) -> Iterator[_Node]:
        """The nodes that spell the prompt, as far as there are any."""
        node = self._root
        for start in range(0, len(prompt) - self._chunk + 1, self._chunk):
            node = node.children.get(prompt[start : start + self._chunk].tobytes())
            if node is None:
                return
            yield node

    def _evict(self, node: _Node) -> None:
        self.evictions += 1
        self._remove(node)

    def _remove(self, node: _Node) -> None:
        """Without its entry, a node is worth keeping only for those that go on from it."""
        snapshot, node.snapshot = node.snapshot, None
        assert snapshot is not None
        del self._entries[snapshot]
        self._unused.append(snapshot)
        while node.parent is not None and not node.children and node.snapshot is None:
            self._pool.drop(node.pages)
            del node.parent.children[node.block]
            node = node.parent
