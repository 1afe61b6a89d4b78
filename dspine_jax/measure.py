"""What a cycle costs at each verify width, measured on the device it will run on."""

import statistics
import time

import jax

from dspine_jax import loop
from dspine_jax.pair import Pair
from dspine_jax.request import check_requests, new_state
from dspine_jax.sampling.params import SamplingParams
from dspine_jax.sampling.width import Method, Verification, WidthCosts, auto_widths, check_width

WARM_UP = 2


def measure_widths(
    pair: Pair,
    *,
    batch: int = 1,
    context: int = 256,
    temperature: float = 1.0,
    verification: Method = "token",
    widths: tuple[int, ...] | None = None,
    repeats: int = 5,
) -> WidthCosts:
    """Median seconds of a whole cycle (draft, target pass, commit) at each width, after a warm-up.

    For `batch` requests with room for `context` positions each; `widths` by default those of verify_width="auto".
    The result is what `generate(..., verify_width="auto", width_costs=)` takes, for any later call of this size.
    """
    if repeats < 1:
        raise ValueError(f"repeats is {repeats}, wanted at least 1")
    widths = auto_widths(pair.drafter_config.block_size) if widths is None else widths
    # What is measured does not depend on the tokens, nor on whether a slot is done.
    tokens = max(1, min(context, pair.target_config.max_position_embeddings) - 1)
    params = (SamplingParams(temperature=temperature, seed=0 if temperature else None),) * batch
    requests = check_requests(pair.target_config, [[0]] * batch, tokens, (), params)
    seconds = []
    for width in widths:
        how = Verification(verification, (check_width(width, pair.drafter_config.block_size),))
        state = new_state(requests, pair.target_config, pair.drafter_config, pair.dtype)
        times = []
        for _ in range(WARM_UP + repeats):
            start = time.perf_counter()
            state = loop.run_cycle(pair.plan, pair.weights, state, how)
            jax.block_until_ready(state.position)
            times.append(time.perf_counter() - start)
        seconds.append(statistics.median(times[WARM_UP:]))
    return WidthCosts(tuple(widths), tuple(seconds))
