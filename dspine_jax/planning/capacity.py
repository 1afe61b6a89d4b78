"""Does it fit, and what else would?"""

import dataclasses

from dspine_jax.buckets import MIN_CAPACITY, round_up
from dspine_jax.planning.gpu import GPU
from dspine_jax.planning.memory import bytes_of
from dspine_jax.planning.pair import AbstractPair, positions, slots
from dspine_jax.request import MAX_BATCH


@dataclasses.dataclass(frozen=True)
class Temporaries:
    """What compiled programs needed beyond weights and state at one size, and a bound for other sizes.

    Temporaries are sums of a constant, of terms that grow with the slots and of terms that grow with all slots'
    positions together; scaling the whole by the larger growth of the two therefore bounds them from above.
    """

    bytes: int
    slots: int
    positions: int  # of one slot

    def bound(self, slots: int, positions: int) -> int:
        """Bytes that suffice at another size."""
        growth = max(1.0, slots / self.slots, slots * positions / (self.slots * self.positions))
        return int(self.bytes * growth)


@dataclasses.dataclass(frozen=True)
class Need:
    """Bytes at one size."""

    weights: int
    state: int
    temporaries: int
    prefix_cache: int
    reserve: int
    device: int

    @property
    def program(self) -> int:
        """What XLA has to allocate."""
        return self.weights + self.state + self.temporaries + self.prefix_cache

    @property
    def headroom(self) -> int:
        """What is left of the device; negative where it does not fit."""
        return self.device - self.reserve - self.program

    @property
    def fits(self) -> bool:
        """Whether everything finds room."""
        return self.headroom >= 0


@dataclasses.dataclass(frozen=True)
class Capacity:
    """A pair on a GPU. Without `temporaries`, programs count as needing none: what then fits may still not."""

    pair: AbstractPair
    gpu: GPU
    temporaries: Temporaries | None
    prefix_cache_bytes: int = 0  # what a server keeps of earlier prompts

    def need(self, slots_wanted: int, context: int) -> Need:
        """Bytes for `slots_wanted` requests of `context` tokens."""
        state = self.pair.state(slots_wanted, context)
        extra = self.temporaries.bound(slots(state), positions(state)) if self.temporaries else 0
        return Need(
            weights=bytes_of(self.pair.weights),
            state=bytes_of(state),
            temporaries=extra,
            prefix_cache=self.prefix_cache_bytes,
            reserve=self.gpu.reserve_bytes,
            device=self.gpu.memory_bytes,
        )

    def contexts(self) -> list[int]:
        """The largest context of each size of page pool, ascending; the last is the model's own limit."""
        limit, block = self.pair.target_config.max_position_embeddings, self.pair.block
        sizes, pool = [], round_up(block + 2, MIN_CAPACITY)
        while pool - block < limit:
            sizes.append(pool - block)
            pool *= 2
        return [*sizes, limit]

    def largest_context(self, slots_wanted: int) -> int | None:
        """The largest context for so many requests; None if not even the smallest fits."""
        fitting = [context for context in self.contexts() if self.need(slots_wanted, context).fits]
        return max(fitting, default=None)

    def most_slots(self, context: int) -> int | None:
        """The most requests of that context at once; None if not even one fits."""
        fitting = [count for count in slot_counts() if self.need(count, context).fits]
        return max(fitting, default=None)

    def frontier(self) -> list[tuple[int, int | None]]:
        """(slots, largest context) for every number of slots that a batch is rounded up to."""
        return [(count, self.largest_context(count)) for count in slot_counts()]


def slot_counts() -> list[int]:
    """The numbers of slots that batches are rounded up to."""
    return [1 << power for power in range(MAX_BATCH.bit_length())]
