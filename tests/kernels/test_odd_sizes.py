"""What an operation's obstacles let through, the GPU's compiler accepts: sizes far from those of the 27B pair.

The interpreter runs shapes that TMA cannot copy, so a missing obstacle would show on a GPU only.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from pallas_kernels.attention_inputs import Heads, rotate_and_store
from pallas_kernels.block_attention import paged_block_attention, ring_block_attention
from pallas_kernels.bridge import BridgeGates, bridge
from pallas_kernels.gated_delta import Records, gated_delta_prefill, gated_delta_replay
from pallas_kernels.retrieval import CoarseHead, retrieve
from pallas_kernels.rope import Rope
from pallas_kernels.row_norm import RowNorm
from pallas_kernels.tail import tail_scores
from tests.kernels.machine_code import Program, compile_program

pytestmark = pytest.mark.kernels


def bf16(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def i32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def program(function, *shapes, label="", **options):
    call = functools.partial(function, implementation="mosaic_gpu", **options)
    return Program(op=function.__name__, label=label, function=call, shapes=shapes, bytes_moved=1)


def ring(rows, held, heads, kv_heads, dim):
    q, context = bf16(2, rows, heads, dim), bf16(2, held, kv_heads, dim)
    block = bf16(2, rows, kv_heads, dim)
    shapes = (q, context, context, block, block, i32(2))
    return program(ring_block_attention, *shapes, window=held, causal=False, label=f"{rows}-{held}-{dim}")


def paged(rows, heads, kv_heads, dim, page):
    q, pages = bf16(3, rows, heads, dim), bf16(9, page, kv_heads, dim)
    shapes = q, pages, pages, i32(3, 3), i32(3)
    return program(paged_block_attention, *shapes, label=f"{rows}-{dim}")


def gated(rows, heads, kv_heads, dim, page):
    plain = paged(rows, heads, kv_heads, dim, page)

    def paged_with_a_gate(*operands, **options):
        return paged_block_attention(*operands[:-1], gate=operands[-1], **options)

    return program(paged_with_a_gate, *plain.shapes, bf16(3, rows, heads, dim + 64), label=plain.label)


def inputs(slots, rows, heads, kv_heads, dim, rotated):
    keys = kv_heads * dim
    weight: Any = bf16(dim)

    def rotated_and_stored(q, k, v, k_cache, v_cache, at, positions, weight, **options):
        norm = RowNorm(weight, 1e-6, "plain")
        q, k = Heads(q, norm, heads, dim), Heads(k, norm, kv_heads, dim)
        return rotate_and_store([q], k, v, k_cache, v_cache, at, positions, Rope(rotated, 1e4), **options)

    return program(
        rotated_and_stored,
        *(bf16(slots, rows, width) for width in (heads * (dim + 8), keys, keys)),
        *(bf16(70, kv_heads, dim) for _ in range(2)),
        *(i32(slots, rows) for _ in range(2)),
        weight,
        label=f"{slots}-{rows}-{dim}-{rotated}",
    )


def gated_delta(slots, rows, recorded, key_heads, value_heads, value_dim):
    pairs, values = f32(slots, rows, key_heads, 128), f32(slots, rows, value_heads, value_dim)
    gates, state = f32(slots, rows, value_heads), f32(slots, value_heads, value_dim, 128)
    keys: Any = f32(slots, recorded, key_heads, 128)
    deltas: Any = f32(slots, value_heads, value_dim, recorded)
    decays: Any = f32(slots, recorded, value_heads)
    records = Records(keys, deltas, decays)
    block = (pairs, pairs, values, gates, gates)
    label = f"{slots}-{rows}-{recorded}"
    return (
        program(gated_delta_replay, state, records, i32(slots), *block, label=label),
        program(gated_delta_prefill, *block, state, label=label),
    )


def drafter(slots, rows, hidden, code, message):
    matrix: Any = bf16(message, code)
    bias: Any = bf16(message)
    gates = BridgeGates(matrix, matrix, matrix, bias)
    label = f"{slots}-{rows}-{hidden}"
    x, positions = bf16(slots, rows, hidden), (slots, rows - 1)
    return (
        program(bridge, x, f32(slots, code), bf16(code, hidden), bf16(hidden, message), gates, eps=1e-6, label=label),
        program(
            tail_scores,
            bf16(*positions, hidden),
            f32(*positions, 1),
            f32(*positions, code),
            bf16(*positions, 16, code),
            bf16(*positions, 16, hidden),
            bf16(hidden, message),
            bf16(hidden),
            gates,
            eps=1e-6,
            label=label,
        ),
    )


def retrieval(rows, vocabulary, hidden):
    values: Any = jax.ShapeDtypeStruct((vocabulary, hidden), jnp.float8_e4m3fn)
    scale: Any = f32(vocabulary)
    label = f"{rows}-{vocabulary}-{hidden}"
    return program(retrieve, bf16(rows, hidden), bf16(vocabulary, hidden), CoarseHead(values, scale), label=label)


PROGRAMS = (
    ring(1, 80, 4, 1, 128),
    ring(16, 1000, 2, 2, 192),
    paged(1, 6, 1, 256, 64),
    paged(7, 4, 2, 64, 128),
    gated(5, 6, 2, 128, 64),
    inputs(1, 1, 1, 1, 64, 64),
    inputs(3, 5, 2, 3, 192, 128),
    inputs(2, 7, 2, 1, 256, 64),
    *gated_delta(1, 1, 1, 1, 1, 64),
    *gated_delta(3, 5, 7, 2, 6, 192),
    *drafter(1, 8, 128, 128, 128),
    *drafter(5, 16, 640, 256, 384),
    retrieval(3, 504, 48),
    retrieval(33, 2056, 384),
)


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_it_compiles(program):
    code = compile_program(program)
    assert code.kernels
    assert not code.warnings
    assert all(kernel.spill_bytes == 0 for kernel in code.kernels)
