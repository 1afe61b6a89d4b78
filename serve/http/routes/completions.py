"""POST /v1/completions."""

import asyncio

from fastapi import APIRouter, Request
from starlette.responses import Response

from serve.http.answer.answer import Answer
from serve.http.answer.choice import Choice, Plain
from serve.http.answer.completion_form import CompletionForm
from serve.http.answer.form import Extras, Head
from serve.http.answer.text import AnswerText
from serve.http.asking import Ask, ask, submit
from serve.http.body import read_body
from serve.http.description import takes
from serve.http.model import Parts
from serve.http.routes.answering import respond
from serve.http.routes.context import Context
from serve.http.routes.prompts import encode
from serve.http.schema.completions import CompletionRequest

DEFAULT_TOKENS = 16  # OpenAI's

router = APIRouter()


@router.post("/v1/completions", openapi_extra=takes(CompletionRequest))
async def completions(request: Request) -> Response:
    """Continues one or more texts."""
    context = Context.of(request)
    observed = context.observe()
    body = await read_body(request, CompletionRequest)
    parts = context.parts(body.model)
    asked = await asyncio.to_thread(_prepare, body, parts, context.settings.max_choices)
    context.note_prompt(body.prompt)
    choices = [
        Choice(index, handle, AnswerText(parts.text, asked.stop_token_ids, asked.stop_strings), Plain())
        for index, handle in enumerate(submit(parts, asked))
    ]
    include_usage = bool(body.stream_options and body.stream_options.include_usage)
    extras = Extras(parts.text, asked.sampling.logprobs, bool(body.token_origins))
    answer = Answer(
        form=CompletionForm(
            Head("cmpl", "text_completion", "text_completion", context.model.name, include_usage), extras
        ),
        choices=choices,
        prompt_tokens=asked.prompt_tokens,
        copies=asked.n,
        proposals=parts.proposals,
        observed=observed,
        chunks_of_tokens=extras.wanted,
    )
    return await respond(request, answer, streamed=bool(body.stream), keep_alive=context.settings.keep_alive)


def _prepare(body: CompletionRequest, parts: Parts, max_choices: int) -> Ask:
    prompts = [encode(parts, prompt, "prompt") if isinstance(prompt, str) else prompt for prompt in body.prompts]
    return ask(
        body,
        parts,
        prompts,
        most_tokens=("max_tokens", DEFAULT_TOKENS if body.max_tokens is None else body.max_tokens),
        logprobs=body.logprobs,
        max_choices=max_choices,
    )
