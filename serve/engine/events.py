"""What a request hears from its engine, cycle by cycle."""

import dataclasses
import enum
from collections.abc import Sequence
from typing import Literal

import numpy as np

from dspine_jax.sampling.logprobs import Logprobs

FinishReason = Literal["stop", "length", "cancelled", "error"]


class Origin(enum.IntEnum):
    """Where a token comes from."""

    DRAFT = 0  # the drafter proposed it and the target accepted it
    CORRECTION = 1  # the target's own, in place of a proposal that it refused
    BONUS = 2  # the target's own after a whole block, or after the prompt: no proposal was refused


@dataclasses.dataclass(frozen=True, eq=False)
class Event:
    """New tokens. The last event of a request, and only that, has a finish reason."""

    tokens: np.ndarray  # [n] int32; a stop token is kept
    origins: tuple[Origin, ...]  # n
    logprobs: Logprobs | None  # of the n tokens, if the request wants them
    accepted: int | None = None  # proposals that the target agreed with in this cycle; None: there was no cycle
    finish: FinishReason | None = None
    error: Exception | None = None  # with finish "error"

    @staticmethod
    def end(finish: FinishReason, error: Exception | None = None) -> "Event":
        """A last event without tokens."""
        return Event(np.zeros(0, np.int32), (), None, finish=finish, error=error)


def origins_of(prompt: int, count: int, accepted: int, width: int) -> tuple[Origin, ...]:
    """Of `prompt` tokens (0 or 1) that follow the prompt and `count` of a cycle that accepted so many proposals.

    A cycle of `width` rows verifies width - 1 proposals and adds one token.
    """
    last = Origin.BONUS if accepted == width - 1 else Origin.CORRECTION
    return (Origin.BONUS,) * prompt + ((Origin.DRAFT,) * accepted + (last,))[:count]


def join_logprobs(parts: Sequence[Logprobs]) -> Logprobs:
    """Those of consecutive events."""
    return Logprobs(
        tokens=np.concatenate([part.tokens for part in parts]),
        top_ids=np.concatenate([part.top_ids for part in parts]),
        top=np.concatenate([part.top for part in parts]),
    )
