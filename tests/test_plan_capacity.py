"""What fits: edges, the search, and the bound on temporaries."""

import dataclasses

import pytest

from dspine_jax.planning.capacity import Capacity, Need, Temporaries, slot_counts
from dspine_jax.planning.gpu import CONTEXT_BYTES, GPU
from dspine_jax.planning.pair import AbstractPair
from tests import configs

BLOCK = 16


@pytest.fixture(scope="module")
def pair():
    return AbstractPair.build(*configs.two_layer_pair())


def gpu(memory_bytes):
    return GPU(name="some", model="Some GPU", memory_bytes=memory_bytes, bandwidth=1e12, peak=None)


def smallest_memory(need: Need) -> int:
    """By bisection: the reserve grows with the memory."""
    low, high = 0, 2 * (need.program + CONTEXT_BYTES)
    while low < high:
        middle = (low + high) // 2
        if middle - gpu(middle).reserve_bytes >= need.program:
            high = middle
        else:
            low = middle + 1
    return low


def test_it_fits_to_the_byte(pair):
    temporaries = Temporaries(bytes=12345, slots=4, positions=1024)
    need = Capacity(pair, gpu(10**12), temporaries).need(4, 1008)
    assert need.temporaries == 12345
    enough = smallest_memory(need)
    assert Capacity(pair, gpu(enough), temporaries).need(4, 1008).fits
    assert not Capacity(pair, gpu(enough - 1), temporaries).need(4, 1008).fits
    assert dataclasses.replace(need, device=need.program + need.reserve).headroom == 0
    assert Capacity(pair, gpu(enough), temporaries, 1).need(4, 1008).headroom == -1


def test_search_finds_the_frontier(pair):
    memory = smallest_memory(Capacity(pair, gpu(10**12), None).need(16, 1008))
    capacity = Capacity(pair, gpu(memory), None)
    assert capacity.largest_context(16) == 1008
    assert capacity.most_slots(1008) == 16
    frontier = capacity.frontier()
    assert [count for count, _ in frontier] == slot_counts() == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    contexts = capacity.contexts()
    for count, context in frontier:
        after = contexts[0 if context is None else contexts.index(context) + 1 :]
        assert context is None or capacity.need(count, context).fits
        assert not any(capacity.need(count, larger).fits for larger in after)


@pytest.mark.parametrize("temporaries", [None, Temporaries(bytes=2**26, slots=4, positions=1024)])
def test_more_slots_never_allow_more_context(pair, temporaries):
    capacity = Capacity(pair, gpu(CONTEXT_BYTES + 2**28), temporaries)
    largest = [context or 0 for _, context in capacity.frontier()]
    assert largest == sorted(largest, reverse=True) and len(set(largest)) > 2
    most = [capacity.most_slots(context) or 0 for context in capacity.contexts()]
    assert most == sorted(most, reverse=True) and len(set(most)) > 2


def test_contexts_fill_their_pages_and_end_at_the_models_limit(pair):
    contexts = Capacity(pair, gpu(1), None).contexts()
    assert contexts == [240, 496, 1008, 2032, 4080, 4096]
    for context in contexts[:-1]:
        assert pair.state(1, context).target_cache.page_table.shape[1] * 64 == context + BLOCK


def test_nothing_fits_a_small_gpu(pair):
    capacity = Capacity(pair, gpu(CONTEXT_BYTES), None)
    assert capacity.largest_context(1) is None and capacity.most_slots(2) is None
    assert {context for _, context in capacity.frontier()} == {None}


def test_temporaries_of_other_sizes_are_bounded():
    """By the worst case: a constant, a term per slot and a term per position of all slots."""
    known = Temporaries(bytes=7 + 11 * 8 + 13 * 8 * 1024, slots=8, positions=1024)
    assert known.bound(8, 1024) == known.bytes
    for slots in (1, 2, 4, 8, 16, 64):
        for positions in (256, 1024, 4096):
            assert known.bound(slots, positions) >= 7 + 11 * slots + 13 * slots * positions


def test_gpu_facts_come_from_the_description(tmp_path):
    h100, h200, b200 = (GPU.read(name) for name in ("h100-80gb", "h200", "b200"))
    assert (h100.bandwidth, h200.bandwidth, b200.bandwidth) == (3.35e12, 4.8e12, 8e12)
    assert h200.memory_bytes == 141 * 2**30
    assert h200.model == "NVIDIA H200"
    # Dense BF16 peaks of the data sheets, at a somewhat lower clock.
    assert h100.peak == pytest.approx(989e12, rel=0.1)
    assert b200.peak == pytest.approx(2250e12, rel=0.1)
    broken = tmp_path / "gpu.txtpb"
    broken.write_text('gpu_device_info { name: "X" core_count: 4 clock_rate_ghz: 1 }')
    with pytest.raises(ValueError, match="device_memory_size"):
        GPU.read(str(broken))
