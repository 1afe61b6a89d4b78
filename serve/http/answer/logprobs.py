"""Logprobs in OpenAI's two forms. They are the model's own, before penalties, temperature and filters."""

from collections.abc import Sequence
from typing import Any

from serve.http.answer.facts import ORIGIN_NAMES, TokenFacts, token_bytes, token_name
from serve.text import TextModel


def chat_logprobs(text: TextModel, tokens: Sequence[TokenFacts]) -> dict[str, Any]:
    """The form of chat: one entry per token, with its bytes; control tokens have none."""

    def entry(token: int, logprob: float | None) -> dict[str, Any]:
        return {"token": token_name(text, token), "logprob": logprob, "bytes": token_bytes(text, token)}

    return {
        "content": [
            entry(facts.token, facts.logprob) | {"top_logprobs": [entry(*other) for other in facts.best]}
            for facts in tokens
        ],
        "refusal": None,
    }


def completion_logprobs(text: TextModel, tokens: Sequence[TokenFacts], offset: int, best: int) -> dict[str, Any]:
    """The form of text completions; `offset` is where the text of the first token begins.

    `top_logprobs` holds the emitted token besides the `best` others asked for.
    """
    offsets = []
    for facts in tokens:
        offsets.append(offset)
        offset += len(facts.text)
    return {
        "tokens": [token_name(text, facts.token) for facts in tokens],
        "token_logprobs": [facts.logprob for facts in tokens],
        "top_logprobs": [
            {token_name(text, token): logprob for token, logprob in (*facts.best, (facts.token, facts.logprob))}
            for facts in tokens
        ]
        if best
        else None,
        "text_offset": offsets,
    }


def token_origins(tokens: Sequence[TokenFacts]) -> list[dict[str, str]]:
    """Where each token comes from."""
    return [{"text": facts.text, "origin": ORIGIN_NAMES[facts.origin]} for facts in tokens]
