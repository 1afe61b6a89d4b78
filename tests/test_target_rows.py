"""What the rows of one call may and may not influence: other slots, padding, earlier rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dspine_jax.cache.gdn_state import GDNState
from dspine_jax.cache.paged_kv import PagedKV
from dspine_jax.target.rows import Rows
from tests.pages import read_pages
from tests.quick_jit import jit
from tests.target_cases import BLOCK, PLAIN, PROMPT, SLOTS
from tests.target_runner import TargetRunner, committed, runner_of
from tests.tiny import random_target, tiny_target_config
from tests.tolerances import FP32_LOGITS, FP32_OP, FP32_STATES, assert_close


@pytest.fixture(scope="module")
def target() -> TargetRunner:
    return runner_of(PLAIN)


@pytest.fixture(scope="module")
def prompted(target):
    """A cache that holds a prompt in both slots."""
    return target.prefill(PLAIN.ids[:, :PROMPT], target.cache(SLOTS), chunk=BLOCK)


@pytest.mark.parametrize("commit", [True, False], ids=["chunk", "block"])
def test_ragged_slots_equal_each_slot_alone(target, commit):
    lengths = np.array([3, 9])
    accepted = jnp.asarray(0 * lengths if commit else lengths, dtype=jnp.int32)
    ids = PLAIN.ids[:, :BLOCK]
    both = target.read(ids, 0, lengths, target.cache(SLOTS), commit=commit)
    together = committed(target.config, both.cache.commit(accepted))
    for slot, length in enumerate(lengths):
        one = target.read(ids[slot : slot + 1, :9], 0, length, target.cache(1), commit=commit)
        alone = committed(target.config, one.cache.commit(accepted[slot : slot + 1]))
        assert_close("logits", both.logits[slot, :length], one.logits[0, :length], FP32_LOGITS)
        for index, want in alone.items():
            assert_close("state", together[index].state[slot], want.state[0], FP32_STATES)
            assert_close("conv", together[index].conv[slot], want.conv[0], FP32_STATES)


@pytest.mark.parametrize("commit", [True, False], ids=["chunk", "block"])
def test_an_empty_slot_is_left_bit_for_bit(target, prompted, commit):
    read = target.read(PLAIN.ids[:, :BLOCK], PROMPT, (0, BLOCK), prompted, commit=commit)
    before, after = (
        committed(target.config, prompted),
        committed(target.config, read.cache.commit(jnp.zeros(2, int))),
    )
    for index, want in before.items():
        np.testing.assert_array_equal(after[index].state[0], want.state[0])
        np.testing.assert_array_equal(after[index].conv[0], want.conv[0])
    for old, new in zip(prompted.layers, read.cache.layers, strict=True):
        if isinstance(old, PagedKV):
            for a, b in zip(read_pages(old, prompted.page_table), read_pages(new, read.cache.page_table), strict=True):
                np.testing.assert_array_equal(a[0], b[0])


@pytest.mark.parametrize("commit", [True, False], ids=["chunk", "block"])
@pytest.mark.parametrize("at", [1, 7, BLOCK - 1])
def test_a_token_influences_its_own_row_and_later_ones_only(target, prompted, commit, at):
    ids = PLAIN.ids[:, PROMPT : PROMPT + BLOCK].copy()
    before = target.read(ids, PROMPT, BLOCK, prompted, commit=commit)
    ids[0, at] = (ids[0, at] + 1) % target.config.vocab_size
    after = target.read(ids, PROMPT, BLOCK, prompted, commit=commit)
    for old, new in zip([*before.layers, before.logits], [*after.layers, after.logits], strict=True):
        np.testing.assert_array_equal(old[1], new[1])
        np.testing.assert_array_equal(old[0, :at], new[0, :at])
        assert np.all(np.any(old[0, at:] != new[0, at:], axis=-1))


def test_dropping_a_block_leaves_no_trace(target, prompted):
    """commit(0): what follows is what would have followed without the block."""
    tail = PLAIN.ids[:, PROMPT : PROMPT + BLOCK]
    want = target.read(tail, PROMPT, BLOCK, prompted, commit=False)
    wrong = target.read(tail[::-1], PROMPT, BLOCK, prompted, commit=False).cache.commit(jnp.zeros(2, jnp.int32))
    got = target.read(tail, PROMPT, BLOCK, wrong, commit=False)
    np.testing.assert_array_equal(got.logits, want.logits)


def test_a_narrow_block_leaves_the_same_records_as_a_padded_one(target, prompted):
    ids = PLAIN.ids[:, PROMPT : PROMPT + BLOCK]
    padded = target.read(ids, PROMPT, 5, prompted, commit=False)
    narrow = target.read(ids[:, :5], PROMPT, 5, prompted, commit=False)
    assert_close("logits", narrow.logits, padded.logits[:, :5], FP32_LOGITS)
    for accepted in (2, 5):
        count = jnp.full(SLOTS, accepted, jnp.int32)
        want, got = (committed(target.config, x.cache.commit(count)) for x in (padded, narrow))
        for index in want:
            assert_close("state", got[index].state, want[index].state, FP32_STATES)
            assert_close("conv", got[index].conv, want[index].conv, FP32_STATES)


def test_gradients_are_finite_beside_an_empty_slot():
    config = tiny_target_config(num_hidden_layers=2, layer_types=("linear_attention", "full_attention"))
    target = TargetRunner(config, random_target(config, 4))
    cache = target.cache(SLOTS, capacity=16, page=16)
    ids = jnp.asarray(PLAIN.ids[:, :4], dtype=jnp.int32)
    rows = Rows.of(jnp.zeros(2, jnp.int32), jnp.array([0, 3], jnp.int32), 4, commit=True)

    def mean_logit(leaves):
        model = target.definition.bind(leaves)
        return jnp.mean(model.logits(model(ids, rows, cache)[0]))

    for name, value in zip(target.definition.names, jit(jax.grad(mean_logit))(target.leaves), strict=True):
        assert np.all(np.isfinite(value)), name
        assert np.any(value != 0), name


def test_taps_are_the_outputs_of_the_named_layers(target):
    ids = jnp.asarray(PLAIN.ids[:, :BLOCK], dtype=jnp.int32)
    rows = Rows.of(jnp.zeros(2, jnp.int32), jnp.full(2, BLOCK, jnp.int32), BLOCK, commit=True)

    def tapped(leaves, cache):
        return target.definition.bind(leaves)(ids, rows, cache, taps=(0, 2))[1]

    got = jit(tapped)(target.leaves, target.cache(SLOTS))
    layers = target.read(ids, 0, BLOCK, target.cache(SLOTS), commit=True).layers
    assert_close("taps", got, np.concatenate([layers[0], layers[2]], axis=-1), FP32_OP)


def test_state_does_not_depend_on_how_bfloat16_rows_are_cut():
    """32 calls of one row, 4 of eight and one of all; with bfloat16 weights the state stays float32."""
    config = tiny_target_config(num_hidden_layers=1, layer_types=("linear_attention",), dtype="bfloat16")
    target = TargetRunner(config, random_target(config, 5))
    states = []
    for span in (32, 8, 1):
        cache = target.prefill(PLAIN.ids[:, :32], target.cache(SLOTS), chunk=span)
        layer = cache.layers[0]
        assert isinstance(layer, GDNState)
        assert layer.state.dtype == jnp.float32
        assert layer.conv.dtype == jnp.bfloat16
        states.append(committed(config, cache)[0].state)
    assert_close("state of 4 x 8", states[1], states[0], FP32_OP)
    assert_close("state of 32 x 1", states[2], states[0], FP32_OP)
