"""Text of one answer: detokenised, cut at a stop string, and beside it which tokens it is made of."""

import collections
import dataclasses
from collections.abc import Collection, Sequence

from serve.http.answer.facts import TokenFacts
from serve.stop_strings import StopStrings
from serve.text import Detokenizer, TextModel


class AnswerText:
    """`feed` gives the text that may be shown; `take` the tokens whose text was shown.

    A token whose text is held back, in what may become a stop string, is kept until its text comes, or until the end.
    One that completes no character is taken after the one before it.
    """

    def __init__(self, text: TextModel, hidden: Collection[int], stops: Sequence[str]):
        self._detokenizer = Detokenizer(text, hidden=hidden)
        self._stops = StopStrings(stops)
        self._made = 0  # characters that the detokenizer gave
        self._shown = 0  # of these, those that were shown
        self._kept: collections.deque[tuple[int, TokenFacts]] = collections.deque()

    @property
    def stopped(self) -> bool:
        """A stop string was found: nothing that follows is part of the text."""
        return self._stops.matched is not None

    def feed(self, facts: TokenFacts) -> str:
        """The text to show after this token."""
        piece = self._detokenizer.feed(facts.token)
        self._made += len(piece)
        self._kept.append((self._made, dataclasses.replace(facts, text=piece)))
        return self._count(self._stops.feed(piece))

    def finish(self) -> str:
        """The text that was held back."""
        if self.stopped:
            return ""
        rest = self._detokenizer.finish()
        self._made += len(rest)
        return self._count(self._stops.feed(rest) + self._stops.finish())

    def take(self) -> list[TokenFacts]:
        """The tokens, in order, whose text was shown since the last call."""
        taken = []
        while self._kept and self._kept[0][0] <= self._shown:
            taken.append(self._kept.popleft()[1])
        return taken

    def take_rest(self) -> list[TokenFacts]:
        """The remaining tokens: control tokens, or those of a stop string."""
        rest = [facts for _, facts in self._kept]
        self._kept.clear()
        return rest

    def _count(self, shown: str) -> str:
        self._shown += len(shown)
        return shown
