"""The smallest parts of an answer, whatever form it is sent in."""

import dataclasses
from collections.abc import Iterable, Sequence

from serve.chat import Content, Piece, Reasoning, ToolCallArguments
from serve.http.answer.facts import TokenFacts


@dataclasses.dataclass(frozen=True)
class Delta:
    """A piece, and the tokens whose text has become complete with it."""

    piece: Piece
    tokens: tuple[TokenFacts, ...] = ()


def join(deltas: Iterable[Delta]) -> list[Delta]:
    """Neighbours of one kind become one."""
    joined: list[Delta] = []
    for delta in deltas:
        piece = _joined(joined[-1].piece, delta.piece) if joined else None
        if piece is None:
            joined.append(delta)
        else:
            joined[-1] = Delta(piece, joined[-1].tokens + delta.tokens)
    return joined


def with_rest(deltas: Sequence[Delta], rest: Sequence[TokenFacts]) -> list[Delta]:
    """The last delta takes tokens that have no text of their own; without one, an empty content does."""
    if not rest:
        return list(deltas)
    *first, last = deltas or [Delta(Content(""))]
    return [*first, Delta(last.piece, last.tokens + tuple(rest))]


def _joined(left: Piece, right: Piece) -> Piece | None:
    match left, right:
        case (Content(), Content()) | (Reasoning(), Reasoning()):
            return dataclasses.replace(left, text=left.text + right.text)
        case ToolCallArguments(), ToolCallArguments() if left.index == right.index:
            return dataclasses.replace(left, text=left.text + right.text)
    return None
