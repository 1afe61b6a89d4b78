"""The prompt of a command: from its arguments, a file or standard input."""

import sys
from pathlib import Path
from typing import BinaryIO

from serve.text import TextError

SIZE_LIMIT = 4 * 2**20


def read_prompt(argument: str | None, file: str | None) -> str:
    """The argument, or the file's text exactly as it is; "-" as either means standard input.

    Raises TextError for a prompt that is empty, too large, unreadable or not UTF-8.
    """
    if argument is not None and argument != "-":
        return _not_empty(argument, "the prompt")
    if argument == "-" or file == "-":
        return _decode(sys.stdin.buffer, "standard input")
    path = Path(file or "")
    try:
        with path.open("rb") as stream:
            return _decode(stream, str(path))
    except OSError as error:
        raise TextError(f"the prompt file cannot be read: {path}: {error.strerror}") from None


def _decode(stream: BinaryIO, name: str) -> str:
    data = stream.read(SIZE_LIMIT + 1)
    if len(data) > SIZE_LIMIT:
        raise TextError(f"{name} holds more than {SIZE_LIMIT} bytes, the limit of a prompt")
    try:
        return _not_empty(data.decode("utf-8"), name)
    except UnicodeDecodeError as error:
        raise TextError(f"{name} is not UTF-8: byte {error.start} is {data[error.start]:#04x}") from None


def _not_empty(text: str, name: str) -> str:
    if not text:
        raise TextError(f"{name} is empty; a prompt needs at least one token")
    return text
