"""What a chat looks like: answers on standard output, everything else on standard error."""

from typing import TextIO

from serve.engine import Origin

PLAIN = "\x1b[0m"
DIM = "\x1b[2m"
ORIGIN_STYLES = {
    Origin.DRAFT: "\x1b[32m",
    Origin.CORRECTION: "\x1b[1;33m",
    Origin.BONUS: "\x1b[1;36m",
}
ORIGIN_MEANINGS = {
    Origin.DRAFT: "proposed and accepted",
    Origin.CORRECTION: "the target's, instead of a refused proposal",
    Origin.BONUS: "the target's, after a whole block or the prompt",
}
# A terminal obeys control characters, and a model may write any: they are shown as pictures.
_VISIBLE = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"}
_VISIBLE |= {0x7F: 0x2421} | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)


class Screen:
    """`terminal` says whether people look at `out`. Without one, it gets the answers' text alone and unchanged.

    `colours` and `err_colours` say which of the two may get styles.
    """

    def __init__(self, out: TextIO, err: TextIO, *, terminal: bool, colours: bool, err_colours: bool):
        self._out = out
        self._err = err
        self._terminal = terminal
        self._colours = colours
        self._err_colours = err_colours
        self._thinking = False
        self._said = False  # the answer has some text of its own
        self._at_start = True  # of a line
        self._err_at_start = True

    @property
    def colours(self) -> bool:
        """Whether `out` shows colours."""
        return self._colours

    def begin(self) -> None:
        """An answer begins."""
        self._thinking = self._said = False
        self._at_start = True

    def reasoning(self, text: str) -> None:
        """What the model thinks: dimmed, and no part of an output that is kept."""
        if not self._thinking:
            text = text.lstrip("\n")
        if not text:
            return
        self._thinking = True
        if self._terminal:
            self._write(text, DIM)
        else:
            self._err_at_start = text.endswith("\n")
            self._err.write(text)
            self._err.flush()

    def content(self, text: str) -> None:
        """What the model says. Line ends at its very beginning belong to the template."""
        if not self._said:
            text = text.lstrip("\n")
            if text and self._thinking and self._terminal:
                self._write("\n\n" if not self._at_start else "\n")
        if text:
            self._said = True
            self._write(text)

    def token(self, text: str, origin: Origin) -> None:
        """A token as the model wrote it, coloured."""
        if text:
            self._said = True
            self._write(text, ORIGIN_STYLES[origin])

    def end(self) -> None:
        """The answer is over: what follows begins on a line of its own."""
        if not self._at_start:
            self._write("\n")
        if not self._err_at_start:
            self._err.write("\n")
            self._err_at_start = True

    def note(self, text: str) -> None:
        """A line that is no part of the answer."""
        text = text.translate(_VISIBLE)
        self._err.write(f"{DIM}{text}{PLAIN}\n" if self._err_colours else f"{text}\n")
        self._err.flush()

    def legend(self) -> None:
        """What the colours mean."""
        for origin, style in ORIGIN_STYLES.items():
            self._out.write(f"{style}{origin.name.lower():<10}{PLAIN} {ORIGIN_MEANINGS[origin]}\n")
        self._out.flush()

    def _write(self, text: str, style: str = "") -> None:
        self._at_start = text.endswith("\n")
        if self._terminal:
            text = text.translate(_VISIBLE)
        self._out.write(f"{style}{text}{PLAIN}" if style and self._colours else text)
        self._out.flush()
