"""How much of the device's memory bandwidth a cycle uses: bytes that it must move, by shapes, over its time.

Every weight that a pass needs is read once, every cached value of the context once, every new one written once. What
an implementation moves besides is its own fault and not counted: 100 percent is what no program can exceed.
"""

import dataclasses
import re
from typing import Any

import jax

from dspine_jax.cache.gdn_state import GDNState
from dspine_jax.cache.paged_kv import PagedKV
from dspine_jax.pair import Pair
from dspine_jax.request import Batch, new_state
from serve.benchmark.subject import ASSETS

LOGIT_BYTES = 4
EMBEDDING, CODEBOOK = "embed_tokens.weight", "injection.codebook.weight"


@dataclasses.dataclass(frozen=True)
class Roof:
    """Bytes per second that the memory can move at most, and who says so."""

    bytes_per_second: float
    source: str


@dataclasses.dataclass(frozen=True)
class Achieved:
    """One way at one concurrency."""

    concurrency: int
    way: str
    context: int  # tokens per request, the mean over the run
    bytes: int  # of one cycle or step
    seconds: float  # median of one cycle or step, host included
    gigabytes_per_second: float
    percent_of_roof: float


def find_roof(gbps: float | None) -> Roof | str:
    """The roof as given, or of the described GPU that this device is; otherwise the reason why there is none."""
    if gbps is not None:
        return Roof(gbps * 1e9, "--roof-gbps")
    device = jax.devices()[0]
    for path in sorted((ASSETS / "gpus").glob("*.txtpb")):
        text = path.read_text(encoding="utf-8")
        name = re.search(r'^\s*name:\s*"([^"]+)"', text, re.MULTILINE)
        bandwidth = re.search(r"memory_bandwidth:\s*([0-9.e+]+)", text)
        if name and bandwidth and name.group(1) == device.device_kind:
            return Roof(float(bandwidth.group(1)), f"description of {name.group(1)}")
    return f"the memory bandwidth of {device.device_kind} is not known here; give it with --roof-gbps"


def achieved(roof: Roof, pair: Pair, way: str, batch: Batch, context: int, rows: int, seconds: float) -> Achieved:
    """What the median cycle of `rows` rows, or the median step, moved per second."""
    moved = cycle_bytes(pair, batch, context, rows) if way == "speculative" else step_bytes(pair, batch, context)
    return Achieved(
        concurrency=len(batch.prompts),
        way=way,
        context=context,
        bytes=moved,
        seconds=seconds,
        gigabytes_per_second=moved / seconds / 1e9,
        percent_of_roof=100 * moved / seconds / roof.bytes_per_second,
    )


def step_bytes(pair: Pair, batch: Batch, context: int) -> int:
    """Bytes of one plain step of requests that have `context` tokens each."""
    return _target_pass(pair, batch, context, 1)


def cycle_bytes(pair: Pair, batch: Batch, context: int, rows: int) -> int:
    """Bytes of one cycle that verifies `rows` rows."""
    slots, drafter, options = len(batch.prompts), pair.drafter_config, pair.plan.options
    weights = _named(pair.plan.drafter.names, pair.weights.drafter)
    del weights[CODEBOOK]  # only the rows of candidates are read
    head = _named(pair.plan.target.names, pair.weights.target)
    head_bytes = (head[EMBEDDING] if pair.target_config.tie_word_embeddings else head["lm_head.weight"]).nbytes
    proposals = slots * (drafter.block_size - 1)
    exact = drafter.head_topk
    if options.retrieval == "fp8":
        head_bytes, exact = _bytes(pair.weights.coarse_head), max(exact, options.coarse)
    gathered = min(proposals * exact, pair.target_config.vocab_size)
    cache = _state(pair, batch, speculative=True).draft_cache
    rings = sum(
        slots * (min(context, ring.k.shape[1]) + rows) * 2 * _row_bytes(ring.k)
        for ring in (cache.layers if cache else ())
    )
    return (
        _target_pass(pair, batch, context, rows)
        + _bytes(weights)
        + head_bytes
        + gathered * pair.target_config.hidden_size * pair.dtype.itemsize
        + rings
    )


def _target_pass(pair: Pair, batch: Batch, context: int, rows: int) -> int:
    slots, config = len(batch.prompts), pair.target_config
    weights = _named(pair.plan.target.names, pair.weights.target)
    if not config.tie_word_embeddings:
        del weights[EMBEDDING]  # only the rows of the tokens are read
    state = _state(pair, batch, speculative=rows > 1)
    held = state.anchor.shape[0]  # slots, the empty ones included
    total = _bytes(weights) + slots * rows * config.vocab_size * LOGIT_BYTES * 2
    for layer in state.target_cache.layers:
        if isinstance(layer, PagedKV):
            total += slots * (context + rows) * 2 * _row_bytes(layer.k)
        elif isinstance(layer, GDNState):
            total += 2 * _bytes(layer) * slots // held  # read and written
    return total


def _state(pair: Pair, batch: Batch, *, speculative: bool) -> Any:
    """Shapes only."""
    plain = dataclasses.replace(batch, sampling=(), seeds=())
    drafter = pair.drafter_config if speculative else None
    return jax.eval_shape(lambda: new_state(plain, pair.target_config, drafter, pair.dtype))


def _named(names: tuple[str, ...], leaves: tuple[jax.Array, ...]) -> dict[str, jax.Array]:
    return dict(zip(names, leaves, strict=True))


def _row_bytes(cached: Any) -> int:
    """Bytes of one position's heads; shapes end in [..., heads, dim]."""
    return cached.shape[-2] * cached.shape[-1] * cached.dtype.itemsize


def _bytes(tree: Any) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
