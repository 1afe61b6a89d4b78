"""An answer as server-sent events."""

import contextlib
import json
from collections.abc import AsyncGenerator
from typing import Any

from serve.http.answer.answer import Answer
from serve.http.answer.merge import merge
from serve.http.errors import as_api_error

COMMENT = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"


def server_sent(data: dict[str, Any]) -> bytes:
    """One event. ASCII only: some clients take every kind of Unicode line break for the end of a line."""
    return b"data: " + json.dumps(data, separators=(",", ":")).encode("ascii") + b"\n\n"


async def stream(answer: Answer, patience: float) -> AsyncGenerator[bytes]:
    """Chunks, or comments when nothing has come for `patience` seconds.

    Raises what went wrong before the first chunk. Later it can only be told in an event of its own, which then is the
    last one: without [DONE], since the answer is not whole.
    """
    begun = False
    try:
        async with contextlib.aclosing(_chunks(answer, patience)) as chunks:
            async for chunk in chunks:
                begun = True
                yield chunk
    except Exception as error:
        if not begun:
            raise
        found = as_api_error(error)
        answer.observe("unavailable" if found.status == 503 else "error")
        yield server_sent(found.body())


async def _chunks(answer: Answer, patience: float) -> AsyncGenerator[bytes]:
    form, head = answer.form, answer.form.head
    opened: set[int] = set()
    left = len(answer.choices)
    async with contextlib.aclosing(merge(answer.choices, patience)) as events:
        async for found in events:
            if found is None:
                yield COMMENT
                continue
            choice, event = found
            answer.observed.event(choice.index)
            deltas = choice.feed(event)
            if choice.index not in opened:
                opened.add(choice.index)
                for part in form.opening(choice):
                    yield server_sent(head.part([part]))
            for delta in deltas:
                if answer.worth_a_chunk(delta):
                    yield server_sent(head.part([form.delta(choice, delta)]))
            if choice.finish is not None:
                left -= 1
                last = {} if left or head.usage else {"metrics": answer.metrics}
                yield server_sent(head.part([form.ending(choice)], **last))
    if head.usage:
        yield server_sent(head.part([], usage=answer.usage, metrics=answer.metrics))
    answer.observe(answer.outcome)
    yield DONE
