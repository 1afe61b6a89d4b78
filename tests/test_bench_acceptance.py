"""Acceptance as the benchmark reports it: the target's own token counts once.

That the loop counts by the same definitions is tested in `test_stats.py`.
"""

import dataclasses

import numpy as np
import pytest

from dspine_jax.generate import Stats
from serve.benchmark.acceptance import Acceptance


def stats_of(*requests: tuple[list[int], int], block: int = 4) -> Stats:
    """Requests as accepted proposals per cycle, and emitted tokens."""
    return Stats(
        cycles=tuple(len(accepted) for accepted, _ in requests),
        accepted=tuple(np.array(accepted, np.int32) for accepted, _ in requests),
        emitted=tuple(emitted for _, emitted in requests),
        block_size=block,
        target_rows=tuple(block * len(accepted) for accepted, _ in requests),
    )


def test_three_cycles_of_0_2_and_15():
    """21 tokens: one from the prompt's pass, then 1 + 3 + 16."""
    found = Acceptance.of("full", [stats_of(([0, 2, 15], 21), block=16)])
    assert found.tokens_per_cycle == (1 + 3 + 16) / 3
    assert (found.cycles, found.tokens, found.drafted, found.accepted) == (3, 20, 45, 17)
    assert found.histogram == (1, 0, 1, *[0] * 12, 1)
    assert found.by_position == (2 / 3, 2 / 3, *[1 / 3] * 13)
    assert sum(found.by_position) == pytest.approx(found.accepted / found.cycles)


def test_runs_and_requests_are_pooled_by_cycle():
    found = Acceptance.of("full", [stats_of(([3, 0, 1], 8)), stats_of(([3], 5), ([0], 2))])
    assert (found.cycles, found.tokens, found.histogram) == (5, 12, (2, 1, 0, 2))
    assert found.tokens_per_cycle == 12 / 5
    assert sum(found.histogram) == found.cycles
    assert found.drafted == 15


def test_a_limit_cuts_the_tokens_and_not_the_agreement():
    found = Acceptance.of("full", [stats_of(([3], 2))])
    assert (found.tokens, found.accepted, found.tokens_per_cycle) == (1, 3, 1.0)


def test_a_narrow_pass_drafts_only_what_it_verified():
    narrow = dataclasses.replace(stats_of(([1, 0], 4)), target_rows=(4,))
    assert Acceptance.of("full", [narrow]).drafted == 2


def test_no_cycle_has_no_mean():
    found = Acceptance.of("full", [stats_of(([], 1))])
    assert found.tokens_per_cycle is None and found.by_position == (0, 0, 0)
