"""One block of proposals: backbone, candidates, tail."""

import dataclasses
import functools
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from dspine_jax.cache.draft_ring import DraftCache
from dspine_jax.drafter.model import Drafter, DraftStates
from dspine_jax.drafter.tail import TailTables, direct_scores, greedy_chain, table_scores
from pallas_kernels.retrieval import CoarseHead, retrieve, retrieve_direct


@dataclasses.dataclass(frozen=True)
class DraftOptions:
    """How proposals are made. None of these can change what a greedy request emits, only how fast."""

    retrieval: Literal["fp8", "direct"] = "fp8"  # float8 pass over the vocabulary, or the head itself
    coarse: int = 128  # tokens that the float8 pass hands to the exact one
    tail: Literal["direct", "table", "off"] = "direct"  # "off": each row's best candidate, for ablation
    bridge: bool = True  # False: no messages between rows before the tail, for ablation

    def __post_init__(self) -> None:
        if self.retrieval not in ("fp8", "direct"):
            raise ValueError(f"retrieval is {self.retrieval!r}, wanted 'fp8' or 'direct'")
        if self.tail not in ("direct", "table", "off"):
            raise ValueError(f"tail is {self.tail!r}, wanted 'direct', 'table' or 'off'")


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["embedding", "head", "coarse_head", "tables"],
    meta_fields=[],
)
@dataclasses.dataclass(frozen=True)
class Borrowed:
    """What the drafter uses of the target, and what is derived from both once at load."""

    embedding: Float[Array, "V H"]
    head: Float[Array, "V H"]
    coarse_head: CoarseHead | None  # for retrieval "fp8"
    tables: TailTables | None  # for tail "table"


@dataclasses.dataclass(frozen=True)
class Proposer:
    """The DSpine drafter bound to its weights: what the speculative loop asks for."""

    drafter: Drafter
    borrowed: Borrowed
    options: DraftOptions

    def write_context(
        self,
        features: Float[Array, "B T F"],
        positions: Int[Array, "B T"],
        valid: Bool[Array, "B T"],
        cache: DraftCache,
    ) -> DraftCache:
        """Target features of committed positions become the drafter's context."""
        return self.drafter.write_context(features, positions, valid, cache)

    def propose(self, anchor: Int[Array, " B"], position: Int[Array, " B"], cache: DraftCache) -> Int[Array, "B T-1"]:
        """Greedy proposals for the positions after the anchor's."""
        states = self.states(anchor, position, cache)
        candidates, _ = self.candidates(states.hidden)
        return self.chain(states, anchor, candidates)

    def tables(
        self, anchor: Int[Array, " B"], position: Int[Array, " B"], cache: DraftCache
    ) -> tuple[Float[Array, "B T-1 k k"], Int[Array, "B T-1 k"]]:
        """Logits of each row's candidates given the row before, for draws, and the candidates.

        Raises ValueError for tail "table", whose scores lack each row's normalisation and are no logits.
        """
        self._check_logits()
        states = self.states(anchor, position, cache)
        candidates, scores = self.candidates(states.hidden)
        return self.logits(states, anchor, candidates, scores), candidates

    def states(self, anchor: Int[Array, " B"], position: Int[Array, " B"], cache: DraftCache) -> DraftStates:
        """What the backbone makes of a block."""
        return self.drafter(anchor, position, cache, self.borrowed.embedding, bridged=self.options.bridge)

    def candidates(self, hidden: Float[Array, "B T-1 H"]) -> tuple[Int[Array, "B T-1 k"], Float[Array, "B T-1 k"]]:
        """The `head_topk` best tokens of each row, best first, and their scores before the tail."""
        keep = self.drafter.config.head_topk
        head = self.borrowed.head
        if self.options.retrieval == "direct":
            return retrieve_direct(hidden, head, keep=keep)
        if self.borrowed.coarse_head is None:
            raise ValueError("retrieval 'fp8' needs a coarse head; build the pair with it")
        return retrieve(
            hidden,
            head,
            self.borrowed.coarse_head,
            coarse=self.options.coarse,
            keep=keep,
            implementation=self.drafter.implementation,
        )

    def chain(
        self, states: DraftStates, anchor: Int[Array, " B"], candidates: Int[Array, "B T-1 k"]
    ) -> Int[Array, "B T-1"]:
        """The greedy choice along the block."""
        if self.options.tail == "off":
            return candidates[..., 0]
        return greedy_chain(self.scores(states, anchor, candidates), candidates)

    def logits(
        self,
        states: DraftStates,
        anchor: Int[Array, " B"],
        candidates: Int[Array, "B T-1 k"],
        before_tail: Float[Array, "B T-1 k"],
    ) -> Float[Array, "B T-1 k k"]:
        """Logits of each row's candidates given the row before; the scores before the tail where there is none.

        Raises ValueError for tail "table", whose scores lack each row's normalisation and are no logits.
        """
        self._check_logits()
        if self.options.tail == "off":
            table = jnp.broadcast_to(before_tail[:, :, None], (*before_tail.shape, before_tail.shape[-1]))
            return table.astype(jnp.float32)
        return self.scores(states, anchor, candidates)

    def scores(
        self, states: DraftStates, anchor: Int[Array, " B"], candidates: Int[Array, "B T-1 k"]
    ) -> Float[Array, "B T-1 k k"]:
        """Conditional scores by the chosen form of the tail."""
        if self.options.tail == "direct":
            return direct_scores(self.drafter, states, anchor, candidates, self.borrowed.head)
        if self.borrowed.tables is None:
            raise ValueError("tail 'table' needs tables; build the pair with them")
        return table_scores(self.drafter, self.borrowed.tables, states, anchor, candidates, self.borrowed.head)

    def _check_logits(self) -> None:
        if self.options.tail == "table":
            raise ValueError(
                "tail 'table' knows only which proposal is best, not how likely each is: sampled requests,"
                " penalties and masks, and verify_width='auto' need tail 'direct' (or 'off')"
            )
