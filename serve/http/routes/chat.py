"""POST /v1/chat/completions."""

import asyncio

from fastapi import APIRouter, Request
from starlette.responses import Response

from serve.chat import ChatOutput, starts_in_reasoning
from serve.http.answer.answer import Answer
from serve.http.answer.chat_form import ChatForm
from serve.http.answer.choice import Choice
from serve.http.answer.form import Extras, Head
from serve.http.answer.text import AnswerText
from serve.http.asking import Ask, ask, submit
from serve.http.body import read_body
from serve.http.description import takes
from serve.http.errors import refused
from serve.http.model import Parts
from serve.http.routes.answering import respond
from serve.http.routes.context import Context
from serve.http.routes.prompts import encode, render
from serve.http.schema.chat import ChatRequest

router = APIRouter()


@router.post("/v1/chat/completions", openapi_extra=takes(ChatRequest))
async def chat(request: Request) -> Response:
    """Answers a conversation."""
    context = Context.of(request)
    observed = context.observe()
    body = await read_body(request, ChatRequest)
    parts = context.parts(body.model)
    prompt, asked = await asyncio.to_thread(_prepare, body, parts, context.settings.max_choices)
    context.note_prompt(prompt)
    reasoning = starts_in_reasoning(prompt)
    tools = body.offered_tools
    most_calls = 1 if body.parallel_tool_calls is False else None
    choices = [
        Choice(
            index,
            handle,
            AnswerText(parts.text, asked.stop_token_ids, asked.stop_strings),
            ChatOutput(reasoning=reasoning, tools=tools or None),
            most_calls=most_calls,
        )
        for index, handle in enumerate(submit(parts, asked))
    ]
    include_usage = bool(body.stream_options and body.stream_options.include_usage)
    extras = Extras(parts.text, asked.sampling.logprobs, bool(body.token_origins))
    answer = Answer(
        form=ChatForm(
            Head("chatcmpl", "chat.completion", "chat.completion.chunk", context.model.name, include_usage), extras
        ),
        choices=choices,
        prompt_tokens=asked.prompt_tokens,
        copies=asked.n,
        proposals=parts.proposals,
        observed=observed,
        chunks_of_tokens=extras.wanted,
    )
    return await respond(request, answer, streamed=bool(body.stream), keep_alive=context.settings.keep_alive)


def _prepare(body: ChatRequest, parts: Parts, max_choices: int) -> tuple[str, Ask]:
    if body.top_logprobs is not None and not body.logprobs:
        raise refused("top_logprobs needs logprobs: true", "top_logprobs", "invalid_value")
    limits = ("max_completion_tokens", body.max_completion_tokens), ("max_tokens", body.max_tokens)
    given = [limit for limit in limits if limit[1] is not None]
    if len(given) > 1:
        raise refused("max_tokens and max_completion_tokens mean the same; give one", "max_tokens", "invalid_value")
    prompt = render(parts, body.messages, body, body.offered_tools)
    asked = ask(
        body,
        parts,
        [encode(parts, prompt, "messages")],
        most_tokens=given[0] if given else limits[0],
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        max_choices=max_choices,
    )
    return prompt, asked
