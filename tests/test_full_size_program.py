"""The cycle of the released 27B pair, compiled for GPUs that are not here, with 32k positions in each slot.

A failure names the instruction of the optimised program and the line of source that it came from.
"""

import collections
import math
import resource

import jax
import pytest

from dspine_jax.deviceless import abstract_gpu
from dspine_jax.planning import presets
from dspine_jax.planning.pair import AbstractPair, positions, slots
from dspine_jax.planning.programs import lower
from tests.compiled_program import CompiledProgram

CONTEXT = 32752
MIB = 2**20
# (GPU, slots) and what a cycle may need there beside weights and caches.
TEMPORARY_BYTES = {("h200", 8): 1024 * MIB, ("h100-80gb", 1): 307 * MIB}
# Results from this size on count as large: every projection of the target, every cache, every recurrent state.
LARGE = 8 * MIB
# No result but a cache itself and scores of the vocabulary may be as large as this.
HUGE = 64 * MIB
# Kernels and copies that one cycle launches, loops unrolled. To be lowered with every kernel that replaces XLA's.
LAUNCHES = 720
# What this project's kernels are called in the program, and how often each runs in a cycle.
KERNELS = {
    "gated_delta_inputs": 48,
    "attention_inputs": 16 + 2 * 5,
    "projection": 48 + 16 + 5 + 1,
    "gated_projection": 64 + 5,
    "projection_shares": 2 * (64 + 5) + 1,
    "residual_rows": 2 * (64 + 5) + 1,
    "gated_delta_replay": 48,
    "block_attention": 16 + 5,
    "combine_splits": 16 + 5,
    "bridge_readout": 5,
    "bridge_code": 5,
    "bridge_message": 5,
    "bridge_write": 5,
    "retrieval_coarse_scores": 1,
    "tail_messages": 1,
    "tail_scores": 1,
}
# Of processor time, all threads and the assembler together: an idle machine with two cores needs less on its clock.
COMPILE_SECONDS = 90


class Cycle:
    """The compiled cycle and what is known of its arguments."""

    def __init__(self, name: str, count: int):
        self.temporary_bytes = TEMPORARY_BYTES[name, count]
        self.pair = AbstractPair.build(
            presets.read_target("qwen3.8-27b"), presets.read_drafter("qwen3.8-27b-dspine-b16")
        )
        self.slots = count
        self.state = self.pair.state(count, CONTEXT)
        gpu = abstract_gpu(name)
        # The tests' own setting would change the matrix products.
        with gpu.current(), jax.default_matmul_precision(None):
            lowered = lower("cycle", self.pair, self.state, gpu, chunk=128)
            start = processor_seconds()
            compiled = lowered.compile()
            self.compile_seconds = processor_seconds() - start
        memory, text = compiled.memory_analysis(), compiled.as_text()
        assert memory is not None and text is not None
        self.memory = memory
        self.program = CompiledProgram(text)

    def weights(self):
        """{checkpoint name: shape} of every weight that counts as large, and of what is derived from them."""
        plan, weights = self.pair.plan, self.pair.weights
        named = dict(zip(plan.target.names, weights.target, strict=True))
        named |= dict(zip(plan.drafter.names, weights.drafter, strict=True))
        assert weights.coarse_head is not None
        named["FP8 head"] = weights.coarse_head.values
        return {name: leaf for name, leaf in named.items() if size(leaf) >= LARGE}

    def caches(self):
        """[(path, leaf)] of the loop state in argument order."""
        return [(jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(self.state)]

    def say(self, instructions):
        """One line for each of the first ten."""
        lines = [f"  {one.bytes / MIB:.1f} MiB  {self.program.where(one)}" for one in instructions[:10]]
        more = [f"  and {len(instructions) - 10} more"] if len(instructions) > 10 else []
        return "\n".join(lines + more)


def size(leaf) -> int:
    return math.prod(leaf.shape) * leaf.dtype.itemsize


def processor_seconds() -> float:
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    )


@pytest.fixture(scope="module", params=TEMPORARY_BYTES, ids=lambda case: f"{case[0]}-{case[1]}")
def cycle(request):
    return Cycle(*request.param)


def test_it_is_the_size_that_is_meant(cycle):
    assert (slots(cycle.state), positions(cycle.state)) == (cycle.slots, 32768)


def test_every_cache_is_updated_in_place(cycle):
    caches = cycle.caches()
    arguments = len(jax.tree.leaves(cycle.pair.weights))
    aliases = cycle.program.aliases
    elsewhere = [path for index, (path, _) in enumerate(caches) if aliases.get(index) != arguments + index]
    assert not elsewhere, f"results that do not take the place of their donated argument: {elsewhere}"
    assert cycle.memory.alias_size_in_bytes == sum(size(leaf) for _, leaf in caches)


def test_nothing_large_is_copied_or_transposed(cycle):
    moved = [one for one, _ in cycle.program.launches if one.bytes >= LARGE and cycle.program.only_moves(one)]
    assert not moved, f"kernels that only move data:\n{cycle.say(moved)}"


def test_no_weight_is_made_anew(cycle):
    """Not converted, not transposed: no result has a large weight's dimensions, in whatever order."""
    dimensions = {tuple(sorted(leaf.shape)) for leaf in cycle.weights().values()}
    made = [
        one
        for one, _ in cycle.program.launches
        if one.bytes >= LARGE and any(tuple(sorted(dims)) in dimensions for _, dims in one.shapes)
    ]
    assert not made, f"results with the dimensions of a weight:\n{cycle.say(made)}"


def test_nothing_as_large_as_a_cache_passes_between_kernels(cycle):
    vocabulary = cycle.pair.target_config.vocab_size
    passing = [
        one
        for one, _ in cycle.program.launches
        # Scores of the vocabulary may lie in tiles.
        if cycle.program.passing_bytes(one) >= HUGE and math.prod(one.shapes[0][1]) % vocabulary
    ]
    assert not passing, f"large results that are no cache:\n{cycle.say(passing)}"


def test_temporaries(cycle):
    largest = sorted((one for one, _ in cycle.program.launches), key=lambda one: -cycle.program.passing_bytes(one))
    assert cycle.memory.temp_size_in_bytes < cycle.temporary_bytes, (
        f"{cycle.memory.temp_size_in_bytes / MIB:.0f} MiB; the largest results:\n{cycle.say(largest[:10])}"
    )


def test_launches(cycle):
    counts: dict[str, int] = {}
    for one, times in cycle.program.launches:
        place = cycle.program.where(one).rpartition(" at ")[2]
        counts[place] = counts.get(place, 0) + times
    most = sorted(counts.items(), key=lambda item: -item[1])[:20]
    assert cycle.program.launch_count <= LAUNCHES, f"{cycle.program.launch_count} launches; most from {most}"


def test_the_kernels_are_there(cycle):
    found = collections.Counter(
        name for one, _ in cycle.program.launches for name in KERNELS if f"/{name}/mpmd_map" in cycle.program.where(one)
    )
    assert found == KERNELS


def test_compile_time(cycle):
    assert cycle.compile_seconds < COMPILE_SECONDS


def test_the_vocabulary_is_never_sorted(cycle):
    vocabulary = cycle.pair.target_config.vocab_size
    sorts = [
        one
        for instructions in cycle.program.computations.values()
        for one in instructions
        if one.opcode == "sort" and any(vocabulary in dims for _, dims in one.shapes)
    ]
    assert not sorts, f"sorts of the vocabulary:\n{cycle.say(sorts)}"
