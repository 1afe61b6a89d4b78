"""The prompts of a run, and the requests made of them."""

import dataclasses
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dspine_jax.config import TargetConfig
from dspine_jax.request import Batch, Prompt, check_requests
from dspine_jax.sampling import SamplingParams
from dspine_jax.training.corpus import source_files, standard_library
from dspine_jax.training.recipe import BUNDLED, read_recipe
from serve.prompt import read_prompt
from serve.text import TextError, TextModel


@dataclasses.dataclass(frozen=True)
class Workload:
    """Prompts of equal length; every request emits exactly `max_new_tokens`, whatever the model says about an end."""

    prompts: tuple[Prompt, ...]
    source: str
    max_new_tokens: int
    sampling: SamplingParams

    def batches(self, config: TargetConfig, size: int, *, count: int | None = None) -> list[Batch]:
        """The first `count` prompts in groups of `size`. Sampled requests get seeds of their own, by prompt.

        Raises ValueError for requests that the target cannot serve.
        """
        seed = self.sampling.seed or 0
        groups = []
        chosen = self.prompts[:count]
        for first in range(0, len(chosen), size):
            prompts = chosen[first : first + size]
            params: Sequence[SamplingParams] = ()
            if self.sampling.sampled or self.sampling.processed:
                own = range(seed + first, seed + first + len(prompts))
                params = [dataclasses.replace(self.sampling, seed=n if self.sampling.sampled else None) for n in own]
            groups.append(check_requests(config, prompts, self.max_new_tokens, (), params))
        return groups

    def describe(self) -> dict[str, Any]:
        """Part of the `settings` of a report."""
        return {
            "prompts": len(self.prompts),
            "prompt_source": self.source,
            "prompt_tokens": len(self.prompts[0]),
            "prompt_hash": prompt_hash(self.prompts),
            "max_new_tokens": self.max_new_tokens,
            "stops": "none: every request emits max_new_tokens",
            "thinking_mode": "off",
            "chat_template": False,
            "sampling": dataclasses.asdict(self.sampling),
        }


def from_files(text: TextModel, files: Sequence[str] | None, tokens: int) -> tuple[list[list[int]], str]:
    """The first `tokens` tokens of each file, and where they come from. Raises TextError for a file that is shorter."""
    source = "files given by the user" if files else "standard library files that the bundled pair never read"
    held_out = read_recipe(BUNDLED)["corpus"]["held_out"]
    paths = [Path(file) for file in files] if files else source_files(standard_library(), held_out)[1]
    prompts = [text.encode(read_prompt(None, str(path)))[:tokens] for path in paths]
    if short := [str(path) for path, ids in zip(paths, prompts, strict=True) if len(ids) < tokens]:
        raise TextError(f"shorter than --prompt-tokens {tokens}: {', '.join(short)}")
    return prompts, source


def at_random(vocab_size: int, count: int, tokens: int) -> tuple[list[np.ndarray], str]:
    """Random token ids, the same on every run: no text, so what is emitted means nothing."""
    rng = np.random.default_rng(0)
    return [rng.integers(0, vocab_size, tokens).astype(np.int32) for _ in range(count)], "random token ids"


def prompt_hash(prompts: Sequence[Prompt]) -> str:
    """Names the exact set of prompts: two runs are comparable only if theirs are equal."""
    digest = hashlib.sha256()
    for prompt in prompts:
        digest.update(len(prompt).to_bytes(4, "little") + np.asarray(prompt, np.int32).tobytes())
    return digest.hexdigest()[:16]
