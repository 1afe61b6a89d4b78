"""Markup in text of which only the beginning is known.

A matcher looks at one place of a text and answers with the place after the markup, with NO, or with MORE when only
further text can tell. NO is final: no continuation of the text changes it.
"""

import enum
import re
from collections.abc import Sequence
from typing import NamedTuple

BLANK = " \t\r\n"
NAME_LIMIT = 128
BLANK_LIMIT = 64  # a model that writes blanks without end is not held back for long

_BLANKS = re.compile(f"[{BLANK}]{{0,{BLANK_LIMIT + 1}}}")
_IN_NAME = re.compile(r"[^<>\r\n]*")


class Verdict(enum.Enum):
    """What a matcher says without a match."""

    NO = "no"
    MORE = "more"


NO, MORE = Verdict.NO, Verdict.MORE


class Named(NamedTuple):
    """The place after a tag that holds a name, and the name."""

    end: int
    name: str


def literal(text: str, at: int, want: str) -> int | Verdict:
    """Exactly this string."""
    got = text[at : at + len(want)]
    if got == want:
        return at + len(want)
    return MORE if want.startswith(got) else NO


def one_of(text: str, at: int, wanted: Sequence[str]) -> int | Verdict:
    """The first of these strings that is there."""
    verdicts = [literal(text, at, want) for want in wanted]
    found = [verdict for verdict in verdicts if not isinstance(verdict, Verdict)]
    return found[0] if found else MORE if MORE in verdicts else NO


def named(text: str, at: int, head: str) -> Named | Verdict:
    """`head`, a name of at most 128 characters on one line without angle brackets, and ">"."""
    start = literal(text, at, head)
    if isinstance(start, Verdict):
        return start
    match = _IN_NAME.match(text, start)
    end = match.end() if match else start
    if end - start > NAME_LIMIT:
        return NO
    if end == len(text):
        return MORE
    name = text[start:end].strip()
    return Named(end + 1, name) if text[end] == ">" and name else NO


def after_blanks(text: str, at: int) -> int | Verdict:
    """At most 64 blanks, or none."""
    match = _BLANKS.match(text, at)
    end = match.end() if match else at
    return end if end - at <= BLANK_LIMIT else NO


def before_blanks(text: str, at: int) -> int:
    """Where the blanks that end at `at` begin; at most 64 of them count."""
    first = max(0, at - BLANK_LIMIT)
    return first + len(text[first:at].rstrip(BLANK))
