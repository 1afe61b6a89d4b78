"""Floors: bytes that one pass must move through device memory, and the arithmetic that it must do.

Each weight is read once, each cached value that the pass needs is read once, each new one is written once. What an
implementation spills between its kernels is not counted, so no program can be faster than these figures.
"""

import dataclasses
import math

from dspine_jax.planning.gpu import GPU
from dspine_jax.planning.memory import CODEBOOK, bytes_of, weight_parts
from dspine_jax.planning.pair import AbstractPair

LOGIT_BYTES = 4
EMBEDDING = "embed_tokens.weight"


@dataclasses.dataclass(frozen=True)
class Pass:
    """One pass over all slots: part -> bytes, and operations of its matrix products."""

    parts: dict[str, int]
    operations: int

    @property
    def bytes(self) -> int:
        """All parts together."""
        return sum(self.parts.values())

    def seconds(self, gpu: GPU) -> float:
        """The larger of the memory's and the arithmetic's time."""
        return max(self.bytes / gpu.bandwidth, self.arithmetic_seconds(gpu) or 0.0)

    def arithmetic_seconds(self, gpu: GPU) -> float | None:
        """Time of the operations at the tensor cores' peak, or None where that is unknown."""
        return None if gpu.peak is None else self.operations / gpu.peak


def cycle(pair: AbstractPair, slots: int, context: int) -> Pass:
    """One speculative cycle of `slots` requests that have `context` tokens each."""
    options, drafter = pair.plan.options, pair.drafter_config
    target = _target_pass(pair, slots, context, pair.block)
    item = pair.dtype.itemsize
    hidden, vocabulary = pair.target_config.hidden_size, pair.target_config.vocab_size
    proposals = slots * (pair.block - 1)
    candidates = proposals * drafter.head_topk

    weights = weight_parts(pair)
    # The tail's candidates are among those that the retrieval scores exactly; no row counts twice.
    retrieval, exact = vocabulary * hidden * item, candidates
    if options.retrieval == "fp8":
        retrieval, exact = weights["fp8_head"], proposals * max(options.coarse, drafter.head_topk)
    head_rows = min(exact, vocabulary)
    if options.tail == "table":
        code_rows = slots * drafter.transfer_dim * item
        code_rows += candidates * 3 * drafter.message_dim * item
    else:
        code_rows = (slots + candidates) * drafter.transfer_dim * item
    ring_row = 2 * drafter.num_key_value_heads * drafter.head_dim
    held = [
        min(context, drafter.sliding_window - 1) if kind == "sliding_attention" and drafter.sliding_window else context
        for kind in drafter.layer_types
    ]
    parts = {
        "target_weights": target.parts.pop("target_weights"),
        "drafter_weights": weights["drafter"],
        "retrieval_head": retrieval,
        "head_rows": head_rows * hidden * item,
        "code_rows": code_rows,
        **target.parts,
        "draft_rings": slots * sum(rows + pair.block for rows in held) * ring_row * item,
    }
    query_width = drafter.num_attention_heads * drafter.head_dim
    products = sum(
        math.prod(leaf.shape)
        for name, leaf in zip(pair.plan.drafter.names, pair.weights.drafter, strict=True)
        if len(leaf.shape) == 2 and name != CODEBOOK
    )
    operations = 2 * slots * pair.block * products + 2 * proposals * vocabulary * hidden
    operations += 4 * slots * pair.block * sum(held) * query_width
    return Pass(parts=parts, operations=target.operations + operations)


def plain_step(pair: AbstractPair, slots: int, context: int) -> Pass:
    """One step of plain decoding of the same requests: what a cycle's time is compared with."""
    return _target_pass(pair, slots, context, 1)


def _target_pass(pair: AbstractPair, slots: int, context: int, rows: int) -> Pass:
    config, item = pair.target_config, pair.dtype.itemsize
    named = dict(zip(pair.plan.target.names, pair.weights.target, strict=True))
    if not config.tie_word_embeddings:
        del named[EMBEDDING]  # only the rows of the tokens are read
    full = config.layer_types.count("full_attention")
    linear = config.num_hidden_layers - full
    key_width = config.linear_num_key_heads * config.linear_key_head_dim
    value_width = config.linear_num_value_heads * config.linear_value_head_dim
    channels = 2 * key_width + value_width
    state = value_width * config.linear_key_head_dim * 4
    record = (key_width + value_width + config.linear_num_value_heads) * 4
    window = (rows + config.linear_conv_kernel_dim - 1) * channels * item
    kv_row = 2 * config.num_key_value_heads * config.head_dim * item
    parts = {
        "target_weights": bytes_of(named),
        "embedding_rows": slots * rows * config.hidden_size * item,
        "target_kv": slots * full * (context + rows) * kv_row,
        # Read, folded and written once; a block's records are written by it and read by the next.
        "gdn_states": slots * linear * 2 * state,
        "gdn_records": slots * linear * 2 * rows * record,
        "conv_windows": slots * linear * 2 * window,
        "logits": slots * rows * config.vocab_size * LOGIT_BYTES * 2,  # written, then read for the choice
    }
    products = sum(
        math.prod(leaf.shape)
        for name, leaf in named.items()
        if len(leaf.shape) == 2 and not name.endswith("conv1d.weight")
    )
    query_width = config.num_attention_heads * config.head_dim
    operations = 2 * slots * rows * products + 4 * slots * rows * full * context * query_width
    return Pass(parts=parts, operations=operations)
