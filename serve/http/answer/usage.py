"""Counts that come with an answer."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from serve.http.answer.choice import Choice


def usage(prompt_tokens: int, choices: Sequence[Choice]) -> dict[str, Any]:
    """OpenAI's usage object. A prompt counts once however many answers it has; so do its cached tokens."""
    completion = sum(choice.completion_tokens for choice in choices)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion,
        "total_tokens": prompt_tokens + completion,
        "prompt_tokens_details": {"cached_tokens": cached_tokens(choices)},
    }


def cached_tokens(choices: Sequence[Choice]) -> int:
    """Prompt tokens that a prefix cache held already."""
    return getattr(choices[0].handle, "cached_tokens", 0)


def speculation(choices: Sequence[Choice], proposals: int) -> dict[str, Any]:
    """The metrics object: what the drafter was good for, over all answers of the request."""
    accepted = sum((choice.accepted for choice in choices), Counter())
    steps = accepted.total()
    agreed = sum(count * cycles for count, cycles in accepted.items())
    drafted = steps * proposals
    return {
        "speculative_decoding": {
            "mean_acceptance_length": 1 + agreed / steps if steps else None,
            "draft_acceptance_rate": agreed / drafted if drafted else None,
            "acceptance_histogram": [accepted[count] for count in range(proposals + 1)],
            "num_spec_steps": steps,
            "num_accepted_draft_tokens": agreed,
            "num_draft_tokens": drafted,
            "num_spec_tokens": proposals,
        }
    }
