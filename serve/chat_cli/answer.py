"""One answer: the engine's events become text on the screen."""

import contextlib
import dataclasses
import signal
import time
from collections.abc import Collection, Iterator

from serve.chat import ChatOutput, Content, Reasoning
from serve.chat_cli.screen import Screen
from serve.engine import Event, FinishReason, Handle
from serve.text import Detokenizer, TextModel


@dataclasses.dataclass
class Answer:
    """What was answered so far, and how fast."""

    content: str = ""
    reasoning: str = ""
    tokens: int = 0
    accepted: list[int] = dataclasses.field(default_factory=list)  # proposals per cycle
    finish: FinishReason | None = None
    seconds: float = 0.0  # from the first event with tokens to the last
    timed_tokens: int = 0  # that came in this time

    @property
    def tokens_per_second(self) -> float | None:
        """Decoding speed after the first tokens; None when all came at once."""
        return self.timed_tokens / self.seconds if self.seconds > 0 else None

    @property
    def acceptance_length(self) -> float | None:
        """Tokens per cycle; None without a cycle."""
        return 1 + sum(self.accepted) / len(self.accepted) if self.accepted else None

    def facts(self) -> str:
        """One line."""
        parts = [f"{self.tokens} token{'' if self.tokens == 1 else 's'}"]
        if self.tokens_per_second is not None:
            parts.append(f"{self.tokens_per_second:.1f} tokens/s")
        if self.acceptance_length is not None:
            parts.append(f"{self.acceptance_length:.2f} tokens per cycle")
        if self.finish in ("length", "cancelled"):
            parts.append({"length": "cut at the limit of tokens", "cancelled": "stopped"}[self.finish])
        return " · ".join(parts)


class Writer:
    """Feeds an answer's events to the screen, as parsed text or as coloured tokens."""

    def __init__(self, text: TextModel, screen: Screen, *, hidden: Collection[int], reasoning: bool, by_origin: bool):
        self.answer = Answer()
        self._detokenizer = Detokenizer(text, hidden=hidden)
        self._output = ChatOutput(reasoning=reasoning, tools=None)
        self._screen = screen
        self._by_origin = by_origin
        self._first: float | None = None

    def feed(self, event: Event) -> None:
        """Shows the event's tokens. Raises the error of a request that ended with one."""
        if event.error is not None:
            raise event.error
        answer = self.answer
        self._time(len(event.tokens))
        answer.tokens += len(event.tokens)
        answer.finish = event.finish
        if event.accepted is not None:
            answer.accepted.append(event.accepted)
        text = ""
        for token, origin in zip(event.tokens, event.origins, strict=True):
            piece = self._detokenizer.feed(int(token))
            text += piece
            if self._by_origin:
                self._screen.token(piece, origin)
        self._take(self._output.feed(text))

    def finish(self) -> None:
        """The last characters."""
        rest = self._detokenizer.finish()
        if self._by_origin:
            self._screen.content(rest)
        self._take([*self._output.feed(rest), *self._output.finish(complete=self.answer.finish == "stop")])

    def _take(self, pieces) -> None:
        for piece in pieces:
            match piece:
                case Reasoning(text):
                    self.answer.reasoning += text
                    if not self._by_origin:
                        self._screen.reasoning(text)
                case Content(text):
                    self.answer.content += text
                    if not self._by_origin:
                        self._screen.content(text)

    def _time(self, tokens: int) -> None:
        if tokens == 0:
            return
        now = time.perf_counter()
        if self._first is None:
            self._first = now
        else:
            self.answer.timed_tokens += tokens
            self.answer.seconds = now - self._first


class Interrupt:
    """Ctrl-C while an answer runs: it cancels the request, whose last event then comes by itself."""

    def __init__(self):
        self._asked = False
        self._handle: Handle | None = None

    def watch(self, handle: Handle) -> None:
        """This is the request to cancel, at once if that was asked for already."""
        self._handle = handle
        if self._asked:
            handle.cancel()

    def _press(self, *_) -> None:
        self._asked = True
        if self._handle is not None:
            self._handle.cancel()

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Takes the place of what Ctrl-C does otherwise."""
        before = signal.signal(signal.SIGINT, self._press)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)
