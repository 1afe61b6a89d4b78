"""One request as a caller writes it, and as the engine keeps it."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from dspine_jax.pair import Pair
from dspine_jax.request import Prompt, check_requests
from dspine_jax.sampling.params import SamplingParams
from serve.engine.config import EngineConfig


@dataclasses.dataclass(frozen=True)
class Request:
    """`stop_token_ids` None means the model's own end-of-text ids; an empty list never stops early."""

    prompt: Prompt
    max_new_tokens: int
    stop_token_ids: Sequence[int] | None = None
    sampling: SamplingParams = dataclasses.field(default_factory=SamplingParams)


@dataclasses.dataclass(frozen=True, eq=False)
class Checked:
    """A request that can be served."""

    prompt: np.ndarray  # int32
    max_new_tokens: int
    stop_token_ids: tuple[int, ...]
    sampling: SamplingParams
    seed: int | None  # what its numbers are drawn with; None: it draws none
    pages: int  # its worst case


def check(request: Request, pair: Pair, config: EngineConfig) -> Checked:
    """Raises ValueError with what was got and what is allowed."""
    batch = check_requests(
        pair.target_config, [request.prompt], request.max_new_tokens, request.stop_token_ids, [request.sampling]
    )
    prompt = batch.prompts[0]
    positions = len(prompt) + request.max_new_tokens
    if positions > config.context:
        raise ValueError(
            f"the prompt has {len(prompt)} tokens and max_new_tokens is {request.max_new_tokens}: {positions} in all,"
            f" but this engine's context is {config.context}; shorten one of them"
        )
    wanted = request.sampling.logprobs
    if wanted is not None and wanted > config.max_logprobs:
        raise ValueError(f"logprobs is {wanted}, but this engine gives at most {config.max_logprobs}")
    block = pair.drafter_config.block_size
    pages = config.pages_needed(positions, block)
    if pages > config.pool(block) - 1:
        raise ValueError(
            f"the request needs {pages} pages of {config.page} positions, but the engine has {config.pool(block) - 1}"
        )
    return Checked(
        prompt=prompt,
        max_new_tokens=request.max_new_tokens,
        stop_token_ids=batch.stop_token_ids,
        sampling=request.sampling,
        seed=batch.seeds[0],
        pages=pages,
    )
