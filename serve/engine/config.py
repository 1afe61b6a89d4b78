"""The sizes of an engine. All are static: they decide which programs there are and how much memory they take."""

import dataclasses

from dspine_jax.buckets import PAGE, PREFILL_CHUNK
from dspine_jax.pair import Pair
from dspine_jax.sampling.params import MAX_LOGPROBS
from dspine_jax.sampling.width import WHOLE_BLOCK, Verification, check_width

MAX_SLOTS = 256


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Raises ValueError for sizes that cannot work."""

    context: int  # most positions of a request, prompt and new tokens together
    slots: int = 8  # requests that run at a time
    chunk: int = PREFILL_CHUNK  # prompt tokens read between two cycles
    page: int = PAGE  # positions of a page
    pages: int | None = None  # pages that requests share; None: every slot can hold a whole context
    queue_limit: int = 64  # requests that may wait
    queue_timeout: float = 60.0  # seconds that one may wait
    max_logprobs: int = 20  # most alternatives per token that a request may ask for
    prefix_cache_bytes: int = 4 << 30  # device memory for snapshots of prompts' prefixes; 0: none are kept
    verification: Verification = WHOLE_BLOCK

    def __post_init__(self) -> None:
        least = {"context": 2, "slots": 1, "chunk": 1, "page": 1, "queue_limit": 0}
        least |= {"max_logprobs": 0, "prefix_cache_bytes": 0}
        for name, low in least.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < low:
                raise ValueError(f"{name} is {value!r}, wanted an integer, at least {low}")
        if self.slots > MAX_SLOTS:
            raise ValueError(f"slots is {self.slots}, wanted at most {MAX_SLOTS}")
        if self.max_logprobs > MAX_LOGPROBS:
            raise ValueError(f"max_logprobs is {self.max_logprobs}, wanted at most {MAX_LOGPROBS}")
        if self.chunk % self.page:
            # So that every chunk but a prompt's last one ends where a page ends, and pages can be shared.
            raise ValueError(f"chunk is {self.chunk} and page {self.page}, wanted a chunk of whole pages")
        if not self.queue_timeout > 0:
            raise ValueError(f"queue_timeout is {self.queue_timeout!r}, wanted seconds above 0")
        if len(self.verification.widths) > 1:
            raise ValueError(
                f"verification has widths {self.verification.widths}: an engine verifies one fixed width; name it, or"
                " none for the whole block"
            )

    def check(self, pair: Pair) -> None:
        """Raises ValueError for sizes that this pair cannot have."""
        longest = pair.target_config.max_position_embeddings
        if self.context > longest:
            raise ValueError(f"context is {self.context}, but the model's is {longest}; take that or less")
        if self.max_logprobs > pair.target_config.vocab_size:
            raise ValueError(
                f"max_logprobs is {self.max_logprobs}, but the vocabulary has {pair.target_config.vocab_size} tokens"
            )
        for width in self.verification.widths:
            check_width(width, pair.drafter_config.block_size)
        if pair.plan.options.tail == "table":
            raise ValueError("tail 'table' cannot serve sampled requests; build the pair with tail 'direct'")
        smallest = self.pages_needed(2, pair.drafter_config.block_size)
        if self.pages is not None and self.pages < smallest:
            raise ValueError(f"pages is {self.pages}, but the shortest request needs {smallest}")

    @property
    def buckets(self) -> tuple[int, ...]:
        """Batch sizes that cycles run at: powers of two, and all slots."""
        powers = [1 << i for i in range(self.slots.bit_length()) if 1 << i < self.slots]
        return (*powers, self.slots)

    def bucket(self, active: int) -> int:
        """The smallest batch that holds `active` slots."""
        return next(size for size in self.buckets if size >= active)

    def pages_needed(self, positions: int, block: int) -> int:
        """The worst case of a request of `positions`: its last block may reach one block past its last token."""
        return -(-(positions + block) // self.page)

    def pages_per_slot(self, block: int) -> int:
        """Entries of a slot's page table."""
        return self.pages_needed(self.context, block)

    def pool(self, block: int) -> int:
        """Pages in all. Page 0 is nobody's: entries of a page table that mean nothing point to it."""
        return 1 + (self.slots * self.pages_per_slot(block) if self.pages is None else self.pages)
