"""Reading lines, from people or from a file, until there are no more."""

import importlib
import sys
from collections.abc import Callable

from serve.chat_cli import commands
from serve.chat_cli.screen import Screen
from serve.chat_cli.session import Session
from serve.engine import RequestFailed, Unavailable

PROMPT, MORE = "> ", "… "


def chat(session: Session, screen: Screen) -> int:
    """Reads and answers until the end of the input. Returns how many messages got no answer."""
    people = sys.stdin.isatty()
    read = _reader(people)
    unanswered = 0
    while True:
        try:
            message = _message(read)
            if message is None:
                if people:
                    screen.note("")
                return unanswered
            if message.startswith("/") and not message.startswith("//"):
                for line in commands.run(message, session):
                    screen.note(line)
            elif message.strip():
                answer = session.ask(message.removeprefix("/") if message.startswith("//") else message, screen)
                screen.note(answer.facts())
        except (ValueError, Unavailable, RequestFailed) as error:
            unanswered += 1
            screen.note(f"error: {error}")
        except KeyboardInterrupt:
            if not people:
                raise
            screen.note("\nCtrl-D leaves")


def _message(read: Callable[[str], str | None]) -> str | None:
    """The next line, with those that it goes on in; None at the end."""
    line = read(PROMPT)
    while line is not None and line.endswith("\\"):
        more = read(MORE)
        line = line[:-1] + "\n" + (more or "")
        if more is None:
            break
    return line


def _reader(people: bool) -> Callable[[str], str | None]:
    if people and sys.stdout.isatty():
        importlib.import_module("readline")  # gives `input` editing and a history
        return _ask
    return _read


def _ask(prompt: str) -> str | None:
    try:
        return input(prompt)
    except EOFError:
        return None


def _read(prompt: str) -> str | None:
    """Without a prompt, which would become part of the output."""
    line = sys.stdin.readline()
    return line.removesuffix("\n") if line else None
