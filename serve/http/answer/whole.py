"""An answer in one piece."""

import contextlib
from typing import Any

from serve.http.answer.answer import Answer
from serve.http.answer.deltas import Delta
from serve.http.answer.merge import merge


async def whole(answer: Answer) -> dict[str, Any]:
    """Waits for all choices. Raises what one of them failed with, and then cancels the others."""
    deltas: dict[int, list[Delta]] = {choice.index: [] for choice in answer.choices}
    async with contextlib.aclosing(merge(answer.choices)) as events:
        async for found in events:
            assert found is not None
            choice, event = found
            answer.observed.event(choice.index)
            deltas[choice.index] += choice.feed(event)
    answer.observe(answer.outcome)
    choices = [answer.form.whole(choice, deltas[choice.index]) for choice in answer.choices]
    return answer.form.head.answer(choices, usage=answer.usage, metrics=answer.metrics)
