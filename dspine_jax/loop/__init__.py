"""The loop: prefill, one speculative cycle, one plain step, and their compiled forms."""

from dspine_jax.loop.compiled import finish_prefill, prefill_chunk, run, run_cycle, run_plain, run_plain_step
from dspine_jax.loop.state import LoopState

__all__ = [
    "LoopState",
    "finish_prefill",
    "prefill_chunk",
    "run",
    "run_cycle",
    "run_plain",
    "run_plain_step",
]
