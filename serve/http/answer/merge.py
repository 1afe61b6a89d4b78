"""Events of several answers as they come, in one coroutine."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence

from serve.engine import Event
from serve.http.answer.choice import Choice


async def merge(
    choices: Sequence[Choice], patience: float | None = None
) -> AsyncGenerator[tuple[Choice, Event] | None]:
    """Each event with its choice; None whenever none has come for `patience` seconds.

    An event is fetched when the one before was consumed, so nothing is buffered here. Whatever ends the iteration
    cancels what is unfinished: close it in the same coroutine (`contextlib.aclosing`).
    """
    iterators = {choice.index: aiter(choice.handle) for choice in choices}
    pending: dict[asyncio.Task[Event], Choice] = {}

    def fetch(choice: Choice) -> None:
        async def following() -> Event:
            return await anext(iterators[choice.index])

        pending[asyncio.create_task(following())] = choice

    try:
        for choice in choices:
            fetch(choice)
        while pending:
            done, _ = await asyncio.wait(pending, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                yield None
            for task in done:
                choice, event = pending.pop(task), task.result()
                yield choice, event
                if choice.finish is None and event.finish is None:
                    fetch(choice)
    finally:
        for task in pending:
            task.cancel()
        for choice in choices:
            if not choice.handle.finished:
                choice.handle.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*pending, return_exceptions=True)
