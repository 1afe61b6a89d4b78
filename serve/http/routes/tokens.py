"""POST /tokenize and /detokenize."""

import asyncio
from typing import Any

from fastapi import APIRouter, Request

from serve.http.body import read_body
from serve.http.description import takes
from serve.http.errors import refused
from serve.http.model import Parts
from serve.http.routes.context import Context
from serve.http.routes.prompts import encode, render
from serve.http.schema.tokens import DetokenizeRequest, TokenizeRequest
from serve.text import Detokenizer

router = APIRouter()


@router.post("/tokenize", openapi_extra=takes(TokenizeRequest))
async def tokenize(request: Request) -> dict[str, Any]:
    """Token ids of a text, or of a conversation as a prompt."""
    context = Context.of(request)
    body = await read_body(request, TokenizeRequest)
    parts = context.parts(body.model)
    tokens = await asyncio.to_thread(_encoded, body, parts)
    return {"tokens": tokens, "count": len(tokens), "max_model_len": parts.context}


@router.post("/detokenize", openapi_extra=takes(DetokenizeRequest))
async def detokenize(request: Request) -> dict[str, Any]:
    """The text of token ids: that of an answer of these tokens, so control tokens add nothing."""
    context = Context.of(request)
    body = await read_body(request, DetokenizeRequest)
    parts = context.parts(body.model)
    if (token := next((token for token in body.tokens if token >= parts.vocab_size), None)) is not None:
        raise refused(f"tokens has {token}, wanted 0 to {parts.vocab_size - 1}", "tokens", "invalid_value")
    return {"prompt": await asyncio.to_thread(_decoded, body.tokens, parts)}


def _encoded(body: TokenizeRequest, parts: Parts) -> list[int]:
    if body.prompt is not None:
        return encode(parts, body.prompt, "prompt")
    return encode(parts, render(parts, body.messages or [], body, body.tool_list), "messages")


def _decoded(tokens: list[int], parts: Parts) -> str:
    detokenizer = Detokenizer(parts.text)
    return "".join([*map(detokenizer.feed, tokens), detokenizer.finish()])
