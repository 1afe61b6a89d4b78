"""What an answer consists of, in the order in which it comes."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Reasoning:
    """Text that the model thinks."""

    text: str


@dataclasses.dataclass(frozen=True)
class Content:
    """Text that the model says."""

    text: str


@dataclasses.dataclass(frozen=True)
class ToolCallBegin:
    """A call begins. Calls of one answer are counted from 0."""

    index: int
    id: str
    name: str


@dataclasses.dataclass(frozen=True)
class ToolCallArguments:
    """The next characters of the JSON object that holds a call's arguments."""

    index: int
    text: str


type Piece = Reasoning | Content | ToolCallBegin | ToolCallArguments


def joined(pieces: list[Piece]) -> list[Piece]:
    """The same answer in as few pieces as possible, none of them empty."""
    result: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, ToolCallBegin):
            result.append(piece)
        elif piece.text and result and _continues(result[-1], piece):
            last = result.pop()
            assert not isinstance(last, ToolCallBegin)
            result.append(dataclasses.replace(last, text=last.text + piece.text))
        elif piece.text:
            result.append(piece)
    return result


def _continues(last: Piece, piece: Piece) -> bool:
    if type(last) is not type(piece):
        return False
    return not isinstance(last, ToolCallArguments) or last.index == getattr(piece, "index", None)
