"""What is told of single tokens beside their text."""

import dataclasses
from collections.abc import Iterator

from serve.engine import Event, Origin
from serve.text import TextModel

ORIGIN_NAMES = {Origin.DRAFT: "draft", Origin.CORRECTION: "correction", Origin.BONUS: "bonus"}


@dataclasses.dataclass(frozen=True)
class TokenFacts:
    """One emitted token."""

    token: int
    origin: Origin
    logprob: float | None  # None: not asked for
    best: tuple[tuple[int, float], ...]  # the most likely tokens in its place
    text: str = ""  # the characters that it completed


def facts_of(event: Event) -> Iterator[TokenFacts]:
    """Of each token of an event."""
    tokens, found = event.tokens.tolist(), event.logprobs
    for index, (token, origin) in enumerate(zip(tokens, event.origins, strict=True)):
        if found is None:
            yield TokenFacts(token, origin, None, ())
            continue
        best = tuple(zip(found.top_ids[index].tolist(), found.top[index].tolist(), strict=True))
        yield TokenFacts(token, origin, float(found.tokens[index]), best)


def token_name(text: TextModel, token: int) -> str:
    """A token as text: a control token's name, and bytes that are no whole characters in hexadecimal."""
    if (name := text.special.get(token)) is not None:
        return name
    data = text.bytes_of(token)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def token_bytes(text: TextModel, token: int) -> list[int] | None:
    """The bytes that a token adds to a text; None for one that adds none."""
    return list(text.bytes_of(token)) or None
