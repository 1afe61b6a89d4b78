"""`dspine chat` in a terminal of its own, with a scripted engine: streaming, colours, Ctrl-C and Ctrl-D."""

import contextlib
import json
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Sequence

import pytest

from tests.test_imports import ROOT

DIM, PLAIN, GREEN, YELLOW, CYAN = "\x1b[2m", "\x1b[0m", "\x1b[32m", "\x1b[1;33m", "\x1b[1;36m"


class Terminal:
    """A process and the terminal it thinks it has."""

    def __init__(self, scripts: Sequence, *arguments: str, **environment: str):
        self._master, slave = pty.openpty()
        command = [sys.executable, "-m", "tests.chat_engine", json.dumps(scripts), *arguments]
        settings = {"PATH": os.environ["PATH"], "TERM": "xterm", "LANG": "C.UTF-8", "PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            cwd=ROOT,
            env=settings | {"JAX_PLATFORMS": "cpu", "INPUTRC": "/dev/null"} | environment,
        )
        os.close(slave)
        self._screen = ""

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def until(self, text: str, seconds: float = 60) -> str:
        """What was shown up to and with this text, from where the last call ended."""
        end = time.monotonic() + seconds
        while text not in self._screen:
            ready, _, _ = select.select([self._master], [], [], max(0, end - time.monotonic()))
            assert ready, f"{text!r} was not shown: {self._screen!r}"
            self._screen += self._read()
        shown, _, self._screen = self._screen.partition(text)
        return (shown + text).replace("\r\n", "\n")

    def type_until(self, keys: str, text: str, seconds: float = 5) -> None:
        """Python leaves an interrupt that comes just before it waits for a key until the next key: then type again.

        That may come later than what it was typed for, and take the keys with it that have been typed since.
        """
        for _ in range(10):
            self.type(keys)
            with contextlib.suppress(AssertionError):
                self.until(text, seconds)
                return
        raise AssertionError(f"{text!r} was not shown: {self._screen!r}")

    def close(self) -> int:
        """Waits for the end of the process; its exit status."""
        try:
            return self.process.wait(30)
        finally:
            self.process.kill()
            self.process.wait()
            os.close(self._master)

    def _read(self) -> str:
        try:
            return os.read(self._master, 65536).decode()
        except OSError:  # the process has closed its side
            raise AssertionError(f"the process ended: {self._screen!r}") from None


@pytest.fixture
def terminal():
    opened: list[Terminal] = []

    def open_one(*arguments, **environment) -> Terminal:
        opened.append(Terminal(*arguments, **environment))
        return opened[-1]

    yield open_one
    for one in opened:
        if one.process.returncode is None:
            one.process.kill()
            one.close()


def leave(chat: Terminal) -> None:
    """Ctrl-D at the prompt: an earlier one would be the end of a line that nobody reads."""
    chat.until("> ")
    chat.type("\x04")
    assert chat.close() == 0


def test_an_answer_is_stopped_and_the_chat_goes_on(terminal):
    think = [["Hm.", "b"], ["</think>\n\nForever", "d"], "wait"]
    chat = terminal([think, [["Still here.", "b"]]])
    chat.until("> ")
    chat.type("Hi\n")
    # The answer is seen while it is not over.
    shown = chat.until("Forever")
    assert f"{DIM}Hm.{PLAIN}\n\nForever" in shown
    chat.type("\x03")
    assert "stopped" in chat.until(PLAIN)
    chat.until("> ")
    chat.type("half a line")
    chat.until("half a line")
    chat.type_until("\x03", "Ctrl-D leaves")
    chat.until("> ")
    chat.type_until("Again\n", "Still here.", seconds=20)
    leave(chat)


def test_tokens_are_coloured_by_origin(terminal):
    chat = terminal([[["a", "b"], ["b", "d"], ["c", "c"], ["</think>", "d"]]], "--origins")
    legend = chat.until("> ")
    assert [style in legend for style in (GREEN, YELLOW, CYAN)] == [True] * 3
    chat.type("Go\n")
    shown = chat.until("tokens per cycle")
    assert f"{CYAN}a{PLAIN}{GREEN}b{PLAIN}{YELLOW}c{PLAIN}{GREEN}<{PLAIN}" in shown
    leave(chat)


def test_no_colours_if_they_are_not_wanted(terminal):
    chat = terminal([[["Hm.</think>Yes", "b"]]], "--origins", NO_COLOR="1")
    assert "--origins needs a terminal with colours" in chat.until("> ")
    chat.type("Go\n")
    shown = chat.until("token")
    assert "Hm.\n\nYes\n" in shown
    assert "\x1b[" not in shown.replace("\x1b[?2004l", "").replace("\x1b[?2004h", "")
    leave(chat)
