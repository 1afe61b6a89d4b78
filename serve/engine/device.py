"""The engine's state on the device, and the only code that touches it. One thread at a time may use it."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from dspine_jax.cache.draft_ring import DraftCache
from dspine_jax.cache.target_cache import TargetCache
from dspine_jax.loop.snapshots import Snapshot
from dspine_jax.loop.state import NO_TOKEN, LoopState
from dspine_jax.pair import Pair
from dspine_jax.planning.memory import bytes_of
from dspine_jax.request import MAX_STOP_IDS
from dspine_jax.sampling.logprobs import LogprobBuffer
from dspine_jax.sampling.params import SamplingParams
from dspine_jax.sampling.processors import Processors
from dspine_jax.sampling.state import Sampling
from serve.engine import programs
from serve.engine.config import EngineConfig
from serve.engine.report import Lane, unpack
from serve.engine.request import Checked


class Device:
    """Slots by number. For each request: `admit`, `read` for each chunk of the prompt, `begin`, `cycle`, `vacate`.

    Between two chunks a slot's state may be saved as a snapshot, from which another may go on after `admit`.
    """

    def __init__(self, pair: Pair, config: EngineConfig):
        self._pair = pair
        self._config = config
        self._block = pair.drafter_config.block_size
        self._table = config.pages_per_slot(self._block)
        # The token after the prompt and those of the first cycle may stand in one report.
        self._room = self._block + 1
        neutral = Sampling.whole([SamplingParams()], [None], [], 1, pair.target_config.vocab_size)
        self._unprocessed = neutral.processors
        self.state = empty_state(pair, config, self._room)
        self.snapshot_bytes = snapshot_bytes(pair, config)
        self.snapshots = snapshot_room(pair, config)
        self.saved = Snapshot.of(self.state).empty(self.snapshots) if self.snapshots else None

    def newcomer(self, request: Checked, pages: Sequence[int]) -> programs.Newcomer:
        """What a slot must know of a request that may write to these pages, in the order of its positions."""
        table = np.zeros((1, self._table), np.int32)
        table[0, : len(pages)] = pages
        stops = np.full((1, MAX_STOP_IDS), NO_TOKEN, np.int32)
        stops[0, : len(request.stop_token_ids)] = request.stop_token_ids
        return programs.Newcomer(
            page_table=jnp.asarray(table),
            stop_ids=jnp.asarray(stops),
            sampling=self._sampling(request),
            logprobs=jnp.asarray(np.array([request.sampling.logprobs is not None])),
        )

    def admit(self, slot: int, newcomer: programs.Newcomer) -> None:
        """Gives the slot to a request."""
        self.state = programs.admit(self.state, _row(slot), newcomer)

    def read(self, slot: int, prompt: np.ndarray) -> None:
        """The next tokens of the slot's prompt, at most a chunk."""
        ids = np.zeros((1, self._config.chunk), np.int32)
        ids[0, : len(prompt)] = prompt
        self.state = programs.read_chunk(
            self._pair.plan, self._pair.weights, self.state, _row(slot), ids, _row(len(prompt))
        )

    def save(self, slot: int, snapshot: int) -> None:
        """Keeps what the slot carries, between two chunks of its prompt, as the snapshot of this number."""
        assert self.saved is not None
        self.saved = programs.save(self.saved, self.state, _row(slot), _row(snapshot))

    def restore(self, slot: int, snapshot: int) -> None:
        """The slot was just admitted, with the snapshot's pages first in its table: it has read that prefix."""
        assert self.saved is not None
        self.state = programs.restore(self.state, self.saved, _row(slot), _row(snapshot))

    def begin(self, slot: int, limit: int) -> None:
        """The slot's prompt was read: its first token, and from now on it takes part in cycles, for `limit` tokens."""
        self.state = programs.first_token(self._pair.plan, self._pair.weights, self.state, _row(slot), _row(limit))

    def cycle(self, slots: Sequence[int], fillers: Sequence[int]) -> dict[int, Lane]:
        """One cycle of these slots: what each has emitted. Some `fillers`, slots that do not run, may take part."""
        size = self._config.bucket(len(slots))
        whole = size == self._config.slots
        order = list(range(size)) if whole else [*slots, *fillers][:size]
        self.state, report = programs.cycle(
            self._pair.plan,
            self._pair.weights,
            self.state,
            np.asarray(order, np.int32),
            self._config.verification,
        )
        rows = jax.device_get(report)  # the one copy of a cycle
        place = {slot: row for row, slot in enumerate(order)}
        return {slot: unpack(rows[place[slot]], self._room, self._config.max_logprobs) for slot in slots}

    def wait(self) -> None:
        """Returns when everything asked for so far was done."""
        jax.block_until_ready(self.state.position)

    def vacate(self, slot: int) -> None:
        """Empties the slot; its pages are no longer written to or read."""
        self.state = programs.vacate(self.state, _row(slot))

    def clear_pages(self, pages: Sequence[int]) -> None:
        """Zeroes pages."""
        for start in range(0, len(pages), self._table):
            part = pages[start : start + self._table]
            index = np.zeros(self._table, np.int32)
            index[: len(part)] = part
            self.state = programs.clear_pages(self.state, index)

    def warm_up(self, progress: Callable[[str], None]) -> None:
        """Runs every program once, on empty slots."""
        progress("compiling what admits and removes requests")
        busy = SamplingParams(temperature=1.0, seed=0, logit_bias={0: 1.0})
        for params in (SamplingParams(), busy):
            probe = Checked(np.zeros(1, np.int32), 1, (), params, seed=0, pages=0)
            self.admit(0, self.newcomer(probe, []))
            if self.saved is not None:
                self.save(0, 0)
                self.restore(0, 0)
            self.vacate(0)
        self.clear_pages([0])
        progress("compiling what reads prompts")
        self.read(0, np.zeros(0, np.int32))
        self.begin(0, 0)
        for size in self._config.buckets:
            progress(f"compiling the cycle of {size} requests")
            self.cycle(range(size), [])
        self.wait()

    def _sampling(self, request: Checked) -> Sampling:
        params, vocab = request.sampling, self._pair.target_config.vocab_size
        processed = params.processed
        made = Sampling.whole([params], [request.seed], [request.prompt], 1, vocab, processed=processed)
        return made if processed else _with_processors(made, self._unprocessed)


def empty_state(pair: Pair, config: EngineConfig, room: int) -> LoopState:
    """Slots without requests, over one pool of pages; `room` tokens fit into each slot's buffer."""
    target, drafter, dtype = pair.target_config, pair.drafter_config, pair.dtype
    slots, block = config.slots, drafter.block_size
    capacity = config.pages_per_slot(block) * config.page

    def zeros(*shape, dtype=jnp.int32):
        return jnp.zeros((slots, *shape), dtype)

    state = LoopState(
        target_cache=TargetCache.zeros(
            target, slots, capacity, block=block, page=config.page, pool=config.pool(block), dtype=dtype
        ),
        draft_cache=DraftCache.zeros(drafter, slots, capacity, dtype=dtype),
        last_hidden=zeros(target.hidden_size, dtype=dtype),
        anchor=zeros(),
        position=zeros(),
        tokens=zeros(room),
        emitted=zeros(),
        limit=zeros(),
        stop_ids=zeros(MAX_STOP_IDS) + NO_TOKEN,
        stopped=zeros(dtype=jnp.bool_),
        failed=zeros(dtype=jnp.bool_),
        cycles=zeros(),
        accepted=zeros(1),
        target_rows=zeros(),
        sampling=Sampling.whole([], [], [], slots, target.vocab_size),
        logprobs=LogprobBuffer.zeros(slots, room, config.max_logprobs),
    )
    return jax.device_put(state, jax.devices()[0])


def snapshot_bytes(pair: Pair, config: EngineConfig) -> int:
    """What one snapshot takes on the device, to the byte."""
    room = pair.drafter_config.block_size + 1
    shapes = jax.eval_shape(lambda: Snapshot.of(empty_state(pair, config, room)))
    return bytes_of(shapes) // config.slots


def snapshot_room(pair: Pair, config: EngineConfig) -> int:
    """How many snapshots there are room for; 0: no prefix is kept.

    As many as `prefix_cache_bytes` holds, but never more than the pool has chunks, each of which has one at most.
    Raises ValueError for fewer bytes than one takes.
    """
    if not config.prefix_cache_bytes:
        return 0
    each = snapshot_bytes(pair, config)
    if config.prefix_cache_bytes < each:
        raise ValueError(
            f"prefix_cache_bytes is {config.prefix_cache_bytes}, but one prefix takes {each}; give that or more, or 0"
            " to keep none"
        )
    chunks = (config.pool(pair.drafter_config.block_size) - 1) // (config.chunk // config.page)
    return min(config.prefix_cache_bytes // each, chunks)


def _with_processors(sampling: Sampling, processors: Processors | None) -> Sampling:
    return Sampling(sampling.filters, processors, sampling.seed, sampling.alone)


def _row(value: int) -> np.ndarray:
    return np.array([value], np.int32)
