"""What only a GPU can show, in a few minutes: run by `make device-check`, one JSON line per finding.

1. The bundled pair in float32: speculative and plain decoding give the same tokens on this device.
2. A pair of the released 27B sizes with random bfloat16 weights: time of a plain step and of a speculative cycle,
   in turn, and what both cost in memory traffic. Random weights accept nothing, so a cycle's time says what a cycle
   costs, not how many tokens it brings.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import dspine_jax
from dspine_jax import loop
from dspine_jax.config import DrafterConfig, TargetConfig
from dspine_jax.generate import prefill
from dspine_jax.pair import Pair, build_pair
from dspine_jax.request import check_requests, new_state
from dspine_jax.weights import abstract_drafter, abstract_target

ROOT = Path(__file__).parent.parent
BUNDLED = ROOT / "dspine_jax" / "assets" / "tiny-pair"
CONFIGS = ROOT / "tests" / "golden" / "configs"


def main() -> int:
    """0 when every check holds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--skip-large", action="store_true", help="only the bundled pair")
    arguments = parser.parse_args()
    device = jax.devices()[0]
    if device.platform != "gpu":
        print(f"device-check: error: the default device is {device.platform}, wanted a GPU", file=sys.stderr)
        return 1
    tell("device", kind=device.device_kind, jax=jax.__version__)
    with jax.default_matmul_precision("highest"):
        same = lossless()
    if not arguments.skip_large:
        cost()
    return 0 if same else 1


def lossless() -> bool:
    """Check 1."""
    pair = dspine_jax.load_hf(target=BUNDLED / "target", draft=BUNDLED / "draft", dtype="float32")
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 900, length) for length in (1, 7, 63, 64, 65, 130, 200, 300)]
    ours = dspine_jax.generate(pair, prompts, max_new_tokens=128, stop_token_ids=())
    plain = dspine_jax.generate_plain(pair, prompts, max_new_tokens=128, stop_token_ids=())
    same = [bool(np.array_equal(a, b)) for a, b in zip(ours.tokens, plain.tokens, strict=True)]
    tell("lossless", same=same, acceptance_length=ours.stats.acceptance_length)
    return all(same)


def cost() -> None:
    """Check 2."""
    pair = large_pair()
    weights = sum(leaf.nbytes for leaf in jax.tree.leaves(pair.weights))
    tell("large pair", gigabytes=weights / 1e9)
    for slots in (1, 8):
        prompts = [np.arange(1, 513)] * slots
        batch = check_requests(pair.target_config, prompts, 256, ())
        times = {}
        for name, plan, drafter, step in (
            ("plain", pair.plain_plan, None, loop.run_plain_step),
            ("cycle", pair.plan, pair.drafter_config, loop.run_cycle),
        ):
            state = new_state(batch, pair.target_config, drafter, pair.dtype)
            state = prefill(plan, pair.weights, state, batch)
            times[name] = step_seconds(partial(step, plan, pair.weights), state)
        tell("step", slots=slots, seconds=times, cycle_over_plain=times["cycle"] / times["plain"])
    tell("memory", **{k: v for k, v in (jax.devices()[0].memory_stats() or {}).items() if "peak" in k})


def step_seconds(step, state, repeats: int = 20) -> float:
    """Median wall time of one dispatch that waits for its result."""
    seconds = []
    for repeat in range(repeats + 2):
        start = time.perf_counter()
        state = jax.block_until_ready(step(state))
        if repeat >= 2:
            seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def large_pair() -> Pair:
    """Random weights of the released sizes, drawn on the device."""
    target = TargetConfig.from_hf(json.loads((CONFIGS / "qwen3.8-27b.json").read_text()))
    drafter = DrafterConfig.from_hf(json.loads((CONFIGS / "qwen3.8-27b-dspine-b16.json").read_text()))
    dtype = jnp.dtype("bfloat16")
    return build_pair(target, drafter, draw(abstract_target(target, dtype)), draw(abstract_drafter(drafter, dtype)))


def draw(abstract: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, jax.Array]:
    """Normal values with standard deviation 0.02, one compiled draw per shape."""
    make = jax.jit(
        lambda key, shape, dtype: (0.02 * jax.random.normal(key, shape)).astype(dtype), static_argnums=(1, 2)
    )
    keys = jax.random.split(jax.random.key(0), len(abstract))
    return {name: make(key, spec.shape, spec.dtype) for key, (name, spec) in zip(keys, abstract.items(), strict=True)}


def tell(what: str, **values: object) -> None:
    """One line of JSON."""
    print(json.dumps({"check": what} | values), flush=True)


if __name__ == "__main__":
    sys.exit(main())
