"""The two ways of decoding a batch, behind one face, so that both are measured by the same code."""

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from dspine_jax import loop
from dspine_jax.buckets import PREFILL_CHUNK
from dspine_jax.generate import Generation, collect, prefill
from dspine_jax.loop import LoopState
from dspine_jax.loop.compiled import Plan
from dspine_jax.pair import Pair
from dspine_jax.request import Batch, new_state
from dspine_jax.sampling.width import WHOLE_BLOCK, Verification, WidthCosts


@dataclasses.dataclass(frozen=True)
class Way:
    """One way of decoding with a pair. Every method waits until the device is done."""

    pair: Pair
    name: Literal["speculative", "plain"]
    verification: Verification = WHOLE_BLOCK
    costs: WidthCosts | None = None  # by which cycles choose their width, if they do
    read_all: bool = True  # False: only the last chunk of each prompt is read, what is before it stays zero

    @property
    def speculative(self) -> bool:
        return self.name == "speculative"

    @property
    def plan(self) -> Plan:
        return self.pair.plan if self.speculative else self.pair.plain_plan

    def start(self, batch: Batch) -> LoopState:
        """All prompts read and the first tokens emitted."""
        pair = self.pair
        drafter = pair.drafter_config if self.speculative else None
        seconds = None if self.costs is None else self.costs.seconds
        state = new_state(batch, pair.target_config, drafter, pair.dtype, width_seconds=seconds)
        unread = 0 if self.read_all else min(map(len, batch.prompts)) - PREFILL_CHUNK
        if unread > 0:
            state = dataclasses.replace(state, position=jnp.where(state.limit > 0, unread, 0))
            batch = dataclasses.replace(batch, prompts=tuple(prompt[unread:] for prompt in batch.prompts))
        return jax.block_until_ready(prefill(self.plan, pair.weights, state, batch))

    def step(self, state: LoopState) -> LoopState:
        """One cycle, or one plain step; the state is donated."""
        if self.speculative:
            state = loop.run_cycle(self.plan, self.pair.weights, state, self.verification)
        else:
            state = loop.run_plain_step(self.plan, self.pair.weights, state)
        return jax.block_until_ready(state)

    def finish(self, state: LoopState) -> LoopState:
        """Cycles or steps until every request is done; the state is donated."""
        while not np.all(jax.device_get(state.done)):
            state = self.step(state)
        return state

    def finish_at_once(self, state: LoopState) -> LoopState:
        """The same in one dispatch: another program, which looks at nothing in between."""
        if self.speculative:
            state = loop.run(self.plan, self.pair.weights, state, self.verification)
        else:
            state = loop.run_plain(self.plan, self.pair.weights, state)
        return jax.block_until_ready(state)

    def collect(self, batch: Batch, state: LoopState) -> Generation:
        """Tokens and statistics on the host."""
        block = self.pair.drafter_config.block_size if self.speculative else 1
        return collect(batch, state, block, self.costs)
