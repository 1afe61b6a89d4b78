"""Whole models on the device: losslessness, and what a cycle costs at the released sizes."""

import json
import math
import statistics
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

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

ROOT = Path(__file__).resolve().parents[2]
BUNDLED = ROOT / "dspine_jax" / "assets" / "tiny-pair"
CONFIGS = ROOT / "tests" / "golden" / "configs"


def lossless() -> dict[str, Any]:
    """Speculative and plain decoding of the bundled pair in float32, token for token."""
    pair = dspine_jax.load_hf(target=BUNDLED / "target", draft=BUNDLED / "draft", dtype="float32")
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 900, length) for length in (1, 7, 63, 64, 65, 130, 200, 300)]
    ours = dspine_jax.generate(pair, prompts, max_new_tokens=128, stop_token_ids=())
    plain = dspine_jax.generate_plain(pair, prompts, max_new_tokens=128, stop_token_ids=())
    same = [bool(np.array_equal(a, b)) for a, b in zip(ours.tokens, plain.tokens, strict=True)]
    return {"check": "lossless", "same": same, "acceptance": ours.stats.acceptance_length, "ok": all(same)}


def cost() -> Iterator[dict[str, Any]]:
    """Seconds of a plain step and of a cycle with random weights: they accept nothing, so only the cost counts."""
    kernels = large_pair()
    forms = {"kernels": kernels, "xla": kernels.with_implementation("xla")}
    gigabytes = sum(leaf.nbytes for leaf in jax.tree.leaves(kernels.weights)) / 1e9
    for slots, name in ((1, "kernels"), (1, "xla"), (8, "kernels")):
        pair = forms[name]
        batch = check_requests(pair.target_config, [np.arange(1, 513)] * slots, 256, ())
        seconds = {}
        for what, plan, drafter, step in (
            ("plain", pair.plain_plan, None, loop.run_plain_step),
            ("cycle", pair.plan, pair.drafter_config, loop.run_cycle),
        ):
            state = new_state(batch, pair.target_config, drafter, pair.dtype)
            state = prefill(plan, pair.weights, state, batch)
            seconds[what] = step_seconds(partial(step, plan, pair.weights), state)
        finite = all(math.isfinite(value) and value > 0 for value in seconds.values())
        yield {"check": "cost", "form": name, "slots": slots, "weights_gb": gigabytes, "seconds": seconds, "ok": finite}
    peak = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0)
    yield {"check": "memory", "peak_gb": peak / 1e9, "ok": peak > 0}


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
