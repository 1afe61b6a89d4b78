"""The target against transformers' `qwen3_5`: every layer's output, the logits and the states.

Every comparison is made with the stored numbers (a few rows of one slot) and, where torch is installed, with a
live run (all rows of both slots).
"""

import dataclasses
import functools
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from dspine_jax.config import TargetConfig
from tests import peers
from tests.target_cases import (
    ACCEPTED,
    BFLOAT16,
    BLOCK,
    CASES,
    END,
    GOLDEN_ROWS,
    ODD,
    PLAIN,
    PROMPT,
    ROWS,
    SLOTS,
    WIDE_KEYS,
    Case,
)
from tests.target_runner import Committed, TargetRunner, committed, runner_of
from tests.tiny import random_target
from tests.tolerances import BF16_BESIDE_PEER, BF16_TARGET, FP32_LOGITS, FP32_STATES, assert_close, relative_rms
from tests.torch_jobs import run_torch

GOLDEN = Path(__file__).parent / "golden" / "target.npz"


@dataclasses.dataclass(frozen=True)
class Answers:
    """transformers' numbers: by key, for these rows of the first `slots` slots."""

    arrays: dict[str, np.ndarray]
    rows: np.ndarray
    slots: int

    def of(self, case: Case, key: str) -> np.ndarray:
        return self.arrays[f"{case.name}/{key}"]

    def check(self, name: str, got, case: Case, key: str, bound: float, rows=slice(None)) -> None:
        """Compares one array [B, T, ...] at the stored rows that `rows` selects."""
        chosen = self.rows[rows]
        want = self.of(case, key)[:, np.isin(self.rows, chosen)]
        assert_close(f"{case.name} {name} {key}", np.asarray(got)[: self.slots, chosen], want, bound)

    def check_states(self, case: Case, length: int, states: dict[int, Committed]) -> None:
        bound = bound_of(case, FP32_STATES)
        for index, got in states.items():
            for kind, ours in (("state", got.state), ("conv", got.conv)):
                key = f"{length}/{kind}/{index}"
                # transformers stores [.., K, V] and [channels, kernel]; the oldest column is never used again.
                want = self.of(case, key).swapaxes(-1, -2)
                want = want[:, 1:] if kind == "conv" else want
                assert_close(f"{case.name} {key}", ours[: self.slots], want, bound)


def bound_of(case: Case, float32: float) -> float:
    return float32 if case.config.dtype == "float32" else BF16_TARGET


@functools.cache
def live() -> Answers:
    return Answers(run_torch(CASES), np.arange(ROWS), SLOTS)


@functools.cache
def golden() -> Answers:
    with np.load(GOLDEN) as stored:
        return Answers(dict(stored), np.array(GOLDEN_ROWS), 1)


needs_torch = pytest.mark.skipif(not peers.available(), reason=peers.MISSING)
SOURCES = [pytest.param(golden, id="golden"), pytest.param(live, id="torch", marks=needs_torch)]


@dataclasses.dataclass(frozen=True)
class Prefilled:
    logits: np.ndarray  # [B, ROWS, V]
    layers: list[np.ndarray]  # [B, ROWS, H] each
    states: dict[int, dict[int, Committed]]  # by prefix length


@functools.cache
def prefilled(case: Case, chunk: int) -> Prefilled:
    """Reads all rows in chunks. The state after a prefix comes from a padded chunk at a boundary."""
    target = runner_of(case)
    ids = np.pad(case.ids, [(0, 0), (0, -ROWS % chunk)])
    cache, reads, states = target.cache(SLOTS), [], {}
    for start in range(0, ROWS, chunk):
        here = ids[:, start : start + chunk]
        for prefix in case.prefixes:
            if start < prefix <= start + chunk:
                part = target.read(here, start, prefix - start, cache, commit=True)
                states[prefix] = committed(case.config, part.cache)
        read = target.read(here, start, min(chunk, ROWS - start), cache, commit=True)
        cache = read.cache
        reads.append(read)
    layers = [
        np.concatenate([np.float32(read.layers[i]) for read in reads], axis=1)[:, :ROWS]
        for i in range(case.config.num_hidden_layers)
    ]
    logits = np.concatenate([read.logits for read in reads], axis=1)[:, :ROWS]
    return Prefilled(logits, layers, states)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(
    ("case", "chunk"),
    [pytest.param(case, chunk, id=f"{case.name}-{chunk}") for case in CASES for chunk in case.chunks],
)
def test_prefill_in_chunks(case, chunk, source):
    answers, ours = source(), prefilled(case, chunk)
    bound = bound_of(case, FP32_LOGITS)
    for index, layer in enumerate(ours.layers):
        answers.check("prefill", layer, case, f"layer/{index}", bound)
    answers.check("prefill", ours.logits, case, "logits", bound)
    assert set(ours.states) == set(case.prefixes)
    for length, states in ours.states.items():
        assert set(states) == {i for i, t in enumerate(case.config.layer_types) if t == "linear_attention"}
        answers.check_states(case, length, states)


@functools.cache
def drafted(case: Case) -> tuple[np.ndarray, dict[int, Committed]]:
    """Logits [B, END, V] of the accepted rows, and the states at the end, of a run in blocks.

    Each block holds so many true tokens and then wrong ones; slot 0 accepts 0, 1, .. 16 rows and slot 1 the
    same numbers in reverse order.
    """
    target = runner_of(case)
    rng = np.random.default_rng(case.seed)
    cache = target.prefill(case.ids[:, :PROMPT], target.cache(SLOTS), chunk=case.chunks[-1])
    logits = np.full((SLOTS, END, case.config.vocab_size), np.nan, np.float32)
    start = np.full(SLOTS, PROMPT)
    for counts in zip(ACCEPTED, reversed(ACCEPTED), strict=True):
        wrong = rng.integers(0, case.config.vocab_size, (SLOTS, BLOCK))
        rows = start[:, None] + np.arange(BLOCK)
        true = np.take_along_axis(case.ids, np.minimum(rows, ROWS - 1), axis=1)
        ids = np.where(np.arange(BLOCK) < np.array(counts)[:, None], true, wrong)
        read = target.read(ids, start, BLOCK, cache, commit=False)
        cache = read.cache.commit(jnp.asarray(counts, dtype=jnp.int32))
        for slot, count in enumerate(counts):
            logits[slot, start[slot] : start[slot] + count] = np.asarray(read.logits)[slot, :count]
        start = start + counts
    return logits, committed(case.config, cache)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_blocks_with_partial_acceptance(case, source):
    logits, states = drafted(case)
    answers = source()
    accepted = (answers.rows >= PROMPT) & (answers.rows < END)
    answers.check("blocks", logits, case, "logits", bound_of(case, FP32_LOGITS), accepted)
    answers.check_states(case, END, states)


def test_bfloat16_is_as_close_to_float32_as_transformers_is():
    """Both run the same bfloat16 weights; the float32 form of them is ours, which other tests compare."""
    flat = {name: value.astype(np.float32) for name, value in random_target(BFLOAT16.config, BFLOAT16.seed).items()}
    exact = TargetRunner(dataclasses.replace(BFLOAT16.config, dtype="float32"), flat)
    want = exact.read(BFLOAT16.ids[:, :64], 0, 64, exact.cache(SLOTS), commit=True).logits
    rows = [i for i, row in enumerate(GOLDEN_ROWS) if row < 64]
    chosen = golden().rows[rows]
    theirs = relative_rms(golden().of(BFLOAT16, "logits")[:, rows], want[:1, chosen])
    ours = relative_rms(prefilled(BFLOAT16, 64).logits[:1, chosen], want[:1, chosen])
    assert ours <= BF16_BESIDE_PEER * theirs, f"{ours=} {theirs=}"


@needs_torch
def test_stored_numbers_are_what_torch_computes():
    stored, now = golden(), live()
    assert set(stored.arrays) == set(now.arrays) - {"versions"}
    for key, want in stored.arrays.items():
        got = now.arrays[key][:1]
        got = got[:, GOLDEN_ROWS] if got.shape[1] == ROWS and want.shape[1] == len(GOLDEN_ROWS) else got
        assert_close(key, got, want, BF16_TARGET if key.startswith("bfloat16") else FP32_LOGITS)


@pytest.mark.parametrize("case", [PLAIN, ODD, WIDE_KEYS], ids=lambda case: case.name)
def test_the_compared_config_is_the_checkpoints_own(case):
    """Rope sections are read and change nothing; a multi-token-prediction block is no decoder layer."""
    config = case.hf_config | {"mtp_num_hidden_layers": 1}
    assert TargetConfig.from_hf(config) == case.config
    layers = {name.split(".")[1] for name in runner_of(case).definition.names if name.startswith("layers.")}
    assert len(layers) == case.config.num_hidden_layers
