"""Stop strings in text that arrives in pieces."""

from collections.abc import Sequence


class StopStrings:
    """Lets text through up to the first stop string, whatever the pieces it comes in.

    The stop string that is complete first wins; of two that end together, the longer one. Text that may still
    become one is held back, and no more than that.
    """

    def __init__(self, stops: Sequence[str]):
        """Raises ValueError for an empty stop string."""
        if not all(stops):
            raise ValueError("a stop string is empty; wanted at least one character")
        self._stops = tuple(stops)
        self._held = ""
        self.matched: str | None = None

    def feed(self, piece: str) -> str:
        """The text that may be shown now; nothing after a match."""
        if self.matched is not None:
            return ""
        text = self._held + piece
        found = [(start + len(stop), start, stop) for stop in self._stops if (start := text.find(stop)) >= 0]
        if found:
            _, start, self.matched = min(found)
            self._held = ""
            return text[:start]
        keep = max((_unfinished(text, stop) for stop in self._stops), default=0)
        shown = len(text) - keep
        self._held = text[shown:]
        return text[:shown]

    def finish(self) -> str:
        """The text held back, when nothing more will come."""
        held, self._held = self._held, ""
        return held


def _unfinished(text: str, stop: str) -> int:
    """How many last characters of the text begin the stop string."""
    longest = min(len(stop) - 1, len(text))
    return next((count for count in range(longest, 0, -1) if text.endswith(stop[:count])), 0)
