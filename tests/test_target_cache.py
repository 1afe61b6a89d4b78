"""Slots, pages and their limits."""

import dataclasses

import jax.numpy as jnp
import numpy as np

from dspine_jax.cache.paged_kv import PagedKV, identity_page_table
from tests.pages import read_pages, store
from tests.target_cases import BLOCK, PLAIN, PROMPT, SLOTS
from tests.target_runner import runner_of
from tests.tolerances import FP32_LOGITS, assert_close


def test_page_size_and_order_do_not_matter():
    target = runner_of(PLAIN)
    plain = target.prefill(PLAIN.ids[:, :PROMPT], target.cache(SLOTS), chunk=BLOCK)
    paged = target.cache(SLOTS, page=8)
    order = np.random.default_rng(0).permutation(paged.page_table.size).reshape(paged.page_table.shape)
    paged = dataclasses.replace(paged, page_table=jnp.asarray(order, dtype=jnp.int32))
    paged = target.prefill(PLAIN.ids[:, :PROMPT], paged, chunk=BLOCK)
    tail = PLAIN.ids[:, PROMPT : PROMPT + BLOCK]
    want = target.read(tail, PROMPT, BLOCK, plain, commit=True).logits
    assert_close("logits", target.read(tail, PROMPT, BLOCK, paged, commit=True).logits, want, FP32_LOGITS)


def test_rows_past_the_last_page_are_dropped():
    """A block at the end of a slot's room must not overwrite its last position, nor another slot's first."""
    table = identity_page_table(2, 2)
    kv = PagedKV.zeros(4, 4, 1, 3, jnp.float32)
    positions = jnp.asarray([[6, 7, 8, 9], [0, 1, 2, 3]], dtype=jnp.int32)
    valid = jnp.asarray([[True, True, True, True], [False, True, False, False]])
    rows = jnp.arange(1.0, 9.0).reshape(2, 4, 1, 1) * jnp.ones((1, 1, 1, 3))
    keys, values = read_pages(store(kv, kv.places(table, positions, valid), rows, -rows), table)
    want = np.zeros((2, 8))
    want[0, 6:] = 1, 2
    want[1, 1] = 6
    np.testing.assert_array_equal(keys[..., 0, 0], want)
    np.testing.assert_array_equal(values[..., 0, 2], -want)


def test_a_reset_slot_starts_anew_and_the_other_goes_on():
    target = runner_of(PLAIN)
    used = target.prefill(PLAIN.ids[:, :PROMPT], target.cache(SLOTS), chunk=BLOCK)
    block = PLAIN.ids[:, PROMPT : PROMPT + BLOCK]
    used = target.read(block, PROMPT, BLOCK, used, commit=False).cache.commit(jnp.full(SLOTS, 7, jnp.int32))
    reset = used.reset_slots(jnp.asarray([True, False]))
    read = target.read(block, (0, PROMPT + 7), BLOCK, reset, commit=False).logits
    fresh = target.read(block, 0, BLOCK, target.cache(SLOTS), commit=False).logits
    onward = target.read(block, PROMPT + 7, BLOCK, used, commit=False).logits
    np.testing.assert_array_equal(read[0], fresh[0])
    np.testing.assert_array_equal(read[1], onward[1])
