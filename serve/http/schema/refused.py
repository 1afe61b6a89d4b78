"""Fields of OpenAI's protocol that this server does not honour: why, and the values that ask for nothing.

A value that asks for nothing is taken and dropped; any other is a 400 that names the field. A field in no table is
unknown, and refused as well.
"""

from typing import Any

type Refusals = dict[str, tuple[str, tuple[Any, ...]]]

COMMON: Refusals = {
    "store": ("answers are not kept", (False,)),
    "service_tier": ("there is one tier", ("auto", "default")),
    "prompt_cache_key": ("prefixes are found by their tokens", ()),
    "safety_identifier": ("there is no moderation; use user", ()),
    "use_beam_search": ("beams are not supported", (False,)),
    "guided_json": ("structured output is not supported", ()),
    "guided_regex": ("structured output is not supported", ()),
    "structured_outputs": ("structured output is not supported", ()),
    "bad_words": ("use logit_bias", ([],)),
    "prompt_logprobs": ("prompts are not scored", ()),
}

CHAT: Refusals = COMMON | {
    "audio": ("this model reads and writes text", ()),
    "function_call": ("use tool_choice", ("auto", "none")),
    "functions": ("use tools", ([],)),
    "modalities": ("this model writes text", (["text"],)),
    "prediction": ("the drafter predicts already", ()),
    "response_format": ("structured output is not supported; only type text is", ({"type": "text"},)),
    "verbosity": ("the model has no such setting", ()),
    "web_search_options": ("the server reaches no web", ()),
}

COMPLETIONS: Refusals = COMMON | {
    "best_of": ("answers are not ranked; use n", (1,)),
    "echo": ("prompts are not repeated", (False,)),
    "response_format": ("structured output is not supported; only type text is", ({"type": "text"},)),
    "suffix": ("the model does not fill in between", ("",)),
}


def refusal(body: dict[str, Any], refusals: Refusals) -> tuple[str, str] | None:
    """The first field that cannot be honoured, and why. Removes fields whose value asks for nothing."""
    for name in [name for name in body if name in refusals]:
        value = body.pop(name)
        why, nothing = refusals[name]
        if value is not None and not any(type(value) is type(other) and value == other for other in nothing):
            return name, why
    return None
