"""The conversation: its messages, its settings, and asking the model for the next answer."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol

from dspine_jax.sampling import SamplingParams
from serve.chat import ChatTemplate, starts_in_reasoning
from serve.chat_cli.answer import Answer, Interrupt, Writer
from serve.chat_cli.screen import Screen
from serve.engine import Handle, Request
from serve.text import TextError, TextModel


class Submits(Protocol):
    """The engine, as far as a chat needs it."""

    def submit(self, request: Request) -> Handle:
        """Puts a request in line."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
    """Everything that stays the same while people chat."""

    engine: Submits
    text: TextModel
    template: ChatTemplate
    context: int
    stop_token_ids: Sequence[int]
    sampling: SamplingParams
    max_new_tokens: int | None = None  # None: as many as the context leaves
    by_origin: bool = False


class Session:
    """`ask` adds a question and its answer to the conversation."""

    def __init__(self, model: Model, *, system: str | None = None, thinking: bool = True):
        self.system = system
        self.thinking = thinking
        self.answers: list[Answer] = []  # of the whole session
        self._model = model
        self._messages: list[dict[str, Any]] = []

    def reset(self) -> None:
        """Forgets the messages, not the system prompt."""
        self._messages.clear()

    def ask(self, question: str, screen: Screen) -> Answer:
        """Shows the answer as it comes; Ctrl-C ends it. A question without any answer is forgotten.

        Raises ChatError, TextError, or an error of the engine.
        """
        self._messages.append({"role": "user", "content": question})
        try:
            answer = self._answer(screen)
        except BaseException:
            self._messages.pop()
            raise
        if answer.tokens == 0:
            self._messages.pop()
        else:
            self._messages.append(_message(answer))
        self.answers.append(answer)
        return answer

    def _answer(self, screen: Screen) -> Answer:
        model = self._model
        system = [{"role": "system", "content": self.system}] if self.system else []
        rendered = model.template.render([*system, *self._messages], enable_thinking=self.thinking)
        prompt = model.text.encode(rendered)
        room = model.context - len(prompt)
        if room < 1:
            raise TextError(
                f"the conversation has {len(prompt)} tokens, and the context is {model.context}; /reset starts anew"
            )
        limit = room if model.max_new_tokens is None else min(room, model.max_new_tokens)
        request = Request(prompt, limit, model.stop_token_ids, model.sampling)
        writer = Writer(
            model.text,
            screen,
            hidden=model.stop_token_ids,
            reasoning=starts_in_reasoning(rendered),
            by_origin=model.by_origin,
        )
        interrupt = Interrupt()
        screen.begin()
        try:
            with interrupt.installed():
                handle = model.engine.submit(request)
                interrupt.watch(handle)
                for event in handle:
                    writer.feed(event)
                writer.finish()
        finally:
            screen.end()
        return writer.answer


def _message(answer: Answer) -> dict[str, Any]:
    message = {"role": "assistant", "content": answer.content}
    return message | {"reasoning_content": answer.reasoning} if answer.reasoning else message
