"""From folders to a model that answers, while the server listens already."""

import dataclasses
import logging
import time
import warnings
from pathlib import Path
from typing import Literal

import jax
import jax.numpy as jnp

from dspine_jax import DraftOptions, Pair, load, load_hf
from dspine_jax.sampling.width import Verification
from pallas_kernels.implementation import Implementation
from serve.chat import ChatTemplate
from serve.engine import Engine, EngineConfig
from serve.http.model import Parts, ServedModel
from serve.text import TextError, TextModel

LOG = logging.getLogger("dspine.http")
DEFAULT_CONTEXT = 8192  # or the model's own, if that is less: every slot takes memory for it


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizes:
    """`EngineConfig`, before the model is known."""

    context: int | None
    slots: int
    chunk: int
    pages: int | None
    queue_limit: int
    queue_timeout: float
    max_logprobs: int
    verification: Verification

    def check(self) -> None:
        """Raises ValueError for sizes that no model could have."""
        self._config(DEFAULT_CONTEXT if self.context is None else self.context, self.max_logprobs)

    def config(self, pair: Pair) -> EngineConfig:
        """Raises ValueError for sizes that cannot work."""
        longest = pair.target_config.max_position_embeddings
        context = min(longest, DEFAULT_CONTEXT) if self.context is None else self.context
        best = min(self.max_logprobs, pair.target_config.vocab_size)
        return self._config(context, best)

    def _config(self, context: int, max_logprobs: int) -> EngineConfig:
        return EngineConfig(
            context=context,
            slots=self.slots,
            chunk=self.chunk,
            pages=self.pages,
            queue_limit=self.queue_limit,
            queue_timeout=self.queue_timeout,
            max_logprobs=max_logprobs,
            verification=self.verification,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """Where the pair is, and how it is run."""

    folder: Path | None  # a converted one; None: the two others
    target: Path | None
    draft: Path | None
    dtype: Literal["bfloat16", "float32"] | None
    options: DraftOptions
    implementation: Implementation | None

    @property
    def text_folder(self) -> Path:
        """Where the tokenizer and the chat template are."""
        found = self.target if self.folder is None else self.folder / "target"
        assert found is not None
        return found

    @property
    def name(self) -> str:
        """What the model is called if nobody says."""
        found = self.folder or self.target
        assert found is not None
        return found.resolve().name

    def read_text(self) -> tuple[TextModel, ChatTemplate | None]:
        """Quickly read, so that faults are told before the weights are. Raises TextError."""
        text = TextModel.read(self.text_folder)
        try:
            return text, ChatTemplate.read(self.text_folder)
        except TextError as error:
            LOG.warning("chat is refused, only texts are continued: %s", error)
            return text, None

    def read_pair(self) -> Pair:
        """Raises WeightsError and ConfigError."""
        if self.folder is not None:
            pair = load(self.folder, dtype=self.dtype, options=self.options)
        else:
            assert self.target is not None and self.draft is not None
            with warnings.catch_warnings(record=True) as caught:
                pair = load_hf(target=self.target, draft=self.draft, dtype=self.dtype, options=self.options)
            for warning in caught:
                LOG.warning("%s", warning.message)
        return pair if self.implementation is None else pair.with_implementation(self.implementation)


def open_model(
    model: ServedModel, source: Source, sizes: Sizes, text: TextModel, template: ChatTemplate | None
) -> None:
    """Reads, compiles, warms up, and opens the model. Raises what is wrong with the pair or the sizes."""
    start = time.perf_counter()

    def progress(what: str) -> None:
        model.progress = what
        LOG.info(what, extra={"fields": {"after_seconds": round(time.perf_counter() - start, 1)}})

    progress("reading the weights")
    pair = source.read_pair()
    size = text.tokenizer.get_vocab_size()
    if size > pair.target_config.vocab_size:
        raise TextError(
            f"the tokenizer has {size} tokens, the target only {pair.target_config.vocab_size};"
            " give the target its own tokenizer.json"
        )
    if pair.dtype == jnp.float32:
        # Whoever asks for float32 wants what plain decoding gives, without the reduced products of some devices.
        jax.config.update("jax_default_matmul_precision", "highest")
    config = sizes.config(pair)
    engine = Engine(pair, config)
    progress(f"{config.slots} slots of {config.context} tokens, {pair.dtype}, on {jax.devices()[0].device_kind}")
    engine.start(progress)
    model.open(Parts(engine, text, template))
    if model.leaving:  # told to in the meantime
        engine.stop()
