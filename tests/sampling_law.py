"""The law of the output, by tens of millions of draws: speculative decoding has the target's own, whatever it does.

Every temperature with every combination of filters, every kind of drafter, both verifications, every verify width:
each of these cells has at least 20 000 draws. The target is the table of `tests.markov`, so the law of each token is
known exactly; a draw is a token, tested together with the two before it, which lie in the same block or in earlier
ones. Each cell is tested against the exact law and against tokens of `generate_plain`, and all cells of a program once
more together.

The bound was set before any run: nothing may have a p-value below ALPHA over the number of p-values. Seeds are fixed,
so that a run says the same every time.

A program here is one verification with one width, compiled once. The tests of the two verifications are files of
their own, so that two processes can share them.
"""

import functools
import inspect
from collections.abc import Sequence

import numpy as np
import pytest

from dspine_jax import SamplingParams, WidthCosts, generate, generate_plain, loop
from dspine_jax.loop import compiled
from dspine_jax.sampling.width import Width
from tests.markov import (
    BLOCK,
    CANDIDATES,
    COPY,
    KINDS,
    LAWS,
    LOGITS,
    PERIOD,
    SCORES,
    STUMBLING,
    VOCAB,
    WRONG,
    Fit,
    markov_pair,
    reference_law,
    same_transitions,
    together,
    transition_counts,
    transition_fit,
)
from tests.quick_jit import longer_jit

DRAWS, ALPHA = 20_000, 1e-3
SLOTS, PACK = 128, 6  # requests and cells of one batch
COSTS = WidthCosts((2, 4, 16), (1.0, 1.15, 1.2))  # every width is chosen at times
METHODS = ("token", "block")
WIDTHS: tuple[Width, ...] = (*range(2, BLOCK + 1), "auto")
NARROW = 4
EXACT = [np.stack([reference_law(row, **law) for row in LOGITS]) for law in LAWS]

Cell = tuple[int, int]  # a law and a kind of drafter, indices into LAWS and KINDS


def cells_of(width: Width) -> list[Cell]:
    """Every law with every kind of drafter, but for the one that is always wrong.

    Of the rows that it is given only the first one or two matter, and it needs more cycles than all others together:
    it has every law at narrow widths, and two at each of the others, where the one that stumbles does its work.
    """
    turn = WIDTHS.index(width) - WIDTHS.index(NARROW) - 1
    wrong = {turn % len(LAWS), (turn + len(LAWS) // 2) % len(LAWS)} if turn >= 0 else range(len(LAWS))
    return [(law, kind) for law in range(len(LAWS)) for kind in range(len(KINDS)) if kind != WRONG or law in wrong]


# Two of each cell, two of each program, one of each law of plain decoding.
P_VALUES = len(METHODS) * sum(2 * len(cells_of(width)) + 2 for width in WIDTHS) + len(LAWS)
BOUND = ALPHA / P_VALUES


def packs_of(cells: Sequence[Cell]) -> list[list[Cell]]:
    """The cells that run together: a batch runs until its slowest slot is done, so they are about equally fast.

    Laws with and without filters that order tokens lie apart, since a batch without any skips the ordering.
    """
    packs = []
    for ordered in (False, True):
        some = [cell for cell in cells if ordered == any(name in LAWS[cell[0]] for name in ("top_k", "top_p"))]
        some.sort(key=tokens_per_cycle)
        count = -(-len(some) // PACK)
        packs += [some[len(some) * i // count : len(some) * (i + 1) // count] for i in range(count)]
    return packs


@functools.cache
def tokens_per_cycle(cell: Cell) -> float:
    """About, of a whole block verified token by token."""
    law, kind = cell
    total = 0.0
    for phase in range(PERIOD):
        accepted = np.linalg.matrix_power(EXACT[law], 100)[0]  # [V] mass accepted so far, by last token
        for row in range(BLOCK - 1):
            total += accepted.sum() / PERIOD
            stumble = COPY if (phase + row) % PERIOD else WRONG
            accepted = accepted @ common_mass(law, stumble if kind == STUMBLING else kind, row)
    return total


@functools.cache
def common_mass(law: int, kind: int, row: int) -> np.ndarray:
    """[last, next] what the laws of draft and target have in common."""
    out = np.zeros((VOCAB, VOCAB))
    candidates = CANDIDATES[kind, row]
    for last in range(VOCAB):
        draft = reference_law(SCORES[kind, last, candidates], **LAWS[law])
        out[last, candidates] = np.minimum(draft, EXACT[law][last, candidates])
    return out


run = longer_jit(inspect.unwrap(compiled.run), static_argnames=("plan", "verification"), donate_argnames="state")


def draw(cells: Sequence[Cell], batch: int, generate, *, name="", **how):
    """The transition counts of each cell, at least DRAWS in each, and the statistics of the run.

    `batch` numbers the calls: two calls of different numbers share no seed.
    """
    each = SLOTS // len(cells)
    slots = [cell for cell in cells for _ in range(each)]
    params = [SamplingParams(**LAWS[law], seed=batch * SLOTS + slot) for slot, (law, _) in enumerate(slots)]
    pair = markov_pair([kind for _, kind in slots] + [0] * (SLOTS - len(slots)), name)
    size = -(-DRAWS // each) + 1  # the first token of a run is no draw
    assert 512 < size <= 1024 - BLOCK - 1, "all sizes belong to one bucket, and so to one compiled program"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "run", run)
        result = generate(pair, [[0]] * len(slots), max_new_tokens=size, stop_token_ids=[], sampling=params, **how)
    runs = [np.concatenate([[0], tokens]) for tokens in result.tokens]
    counts = [transition_counts(runs[i * each : (i + 1) * each]) for i in range(len(cells))]
    assert min(count.sum() for count in counts) >= DRAWS
    return counts, result.stats


@functools.cache
def plain_counts() -> list[np.ndarray]:
    """Transition counts of plain decoding, per law."""
    laws = [(law, COPY) for law in range(len(LAWS))]
    return [count for i in range(0, len(laws), PACK) for count in draw(laws[i : i + PACK], i, generate_plain)[0]]


def check_program(method, width: Width, record_property) -> None:
    """Draws every cell of a program and asserts that none has another law than the target's."""
    costs = COSTS if width == "auto" else None
    first_batch = 1000 * (1 + METHODS.index(method) * len(WIDTHS) + WIDTHS.index(width))
    counts: dict[Cell, np.ndarray] = {}
    accepted = np.zeros(BLOCK, int)
    for number, pack in enumerate(packs_of(cells_of(width)), first_batch):
        drawn, stats = draw(pack, number, generate, verification=method, verify_width=width, width_costs=costs)
        counts.update(zip(pack, drawn, strict=True))
        accepted += stats.histogram
    assert sorted(counts) == cells_of(width)

    plain = plain_counts()
    exact = {cell: transition_fit(count, EXACT[cell[0]]) for cell, count in counts.items()}
    same = {cell: same_transitions(count, plain[cell[0]]) for cell, count in counts.items()}
    # All drafters of a law are compared with the same plain tokens, so they are added up first.
    sums = np.zeros((len(LAWS), VOCAB, VOCAB, VOCAB))
    for (law, _), count in counts.items():
        sums[law] += count
    overall = {
        "exact law": together(exact.values()).p_value,
        "plain decoding": together(map(same_transitions, sums, plain)).p_value,
    }
    p_values = []
    for name, fits in {"exact law": exact, "plain decoding": same}.items():
        worst = min(fits, key=lambda cell: fits[cell].p_value)
        least = fits[worst].p_value
        p_values += [f"{least:.2g}", f"{overall[name]:.2g}"]
        case = f"{LAWS[worst[0]]}, drafter {KINDS[worst[1]]}"
        assert least > BOUND, f"{method} {width}, {name}: {case} has p-value {least:.2g}, bound {BOUND:.2g}"
        assert overall[name] > BOUND, f"{method} {width}, {name}: all together have {overall[name]:.2g}"
    record_property("p-values", p_values)
    print("\n| " + " | ".join([method, str(width), str(len(counts)), *p_values]) + " |")
    # It means something only if each number of proposals was often accepted, and so each row often the last one.
    most = BLOCK if width == "auto" else width
    assert accepted[:most].min() > 500, f"{method} {width}: cycles by accepted proposals {accepted.tolist()}"


def least_p_value(batch: int, **how) -> float:
    """Of the drafter that is near the law, over all laws, by one program: for the controls."""
    fits: list[Fit] = []
    for number, pack in enumerate(packs_of([(law, COPY) for law in range(len(LAWS))]), batch):
        counts, _ = draw(pack, number, generate, **how)
        fits += [transition_fit(count, EXACT[law]) for count, (law, _) in zip(counts, pack, strict=True)]
    return min(fit.p_value for fit in fits)
