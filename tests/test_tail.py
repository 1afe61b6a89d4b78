"""The tail: conditional scores in two forms, and the chain through them."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from dspine_jax.drafter.model import DraftStates
from dspine_jax.drafter.tail import build_tables, direct_scores, greedy_chain, predecessors, table_scores
from pallas_kernels.retrieval import retrieve_direct
from tests.drafter_runner import DrafterRunner
from tests.oracle_drafter import BlockStates, DrafterOracle, chain, wide
from tests.quick_jit import jit
from tests.tolerances import BF16_TAIL_TABLES, FP32_OP, FP32_TAIL_TABLES, FP32_VISIBLE, assert_close

LENGTHS, ANCHORS = np.array([40, 3]), np.array([17, 4])


@dataclasses.dataclass(frozen=True)
class Case:
    """One block per slot, its candidates, and the same in float64."""

    runner: DrafterRunner
    states: DraftStates
    anchor: jnp.ndarray
    candidates: jnp.ndarray
    features: np.ndarray

    @staticmethod
    def of(seed: int = 1) -> "Case":
        runner = DrafterRunner.of(seed)
        features = runner.features(2, 40, seed)
        states = runner.block(ANCHORS, LENGTHS, runner.write(features, LENGTHS, runner.cache(2)))
        candidates = retrieve_direct(states.hidden, runner.head, keep=runner.config.head_topk)[0]
        return Case(runner, states, jnp.asarray(ANCHORS, dtype=jnp.int32), candidates, np.asarray(features))

    def direct(self):
        return _direct(self.runner.definition, self.runner.leaves, self)

    def table(self, dtype):
        return _table(self.runner.definition, dtype, self.runner.leaves, self)

    def oracle(self, slot: int) -> tuple[DrafterOracle, tuple[BlockStates, int, np.ndarray]]:
        """The oracle, and its states, the anchor and the candidates of one slot."""
        oracle = self.runner.oracle
        states = oracle.block(int(ANCHORS[slot]), self.features[slot, : LENGTHS[slot]])
        return oracle, (states, int(ANCHORS[slot]), np.asarray(self.candidates[slot]))

    def rho(self) -> np.ndarray:
        """[B, T-1, k, 1] in float64."""
        parts = [self.oracle(slot) for slot in range(2)]
        return np.stack([oracle.rho(*rest) for oracle, rest in parts])[..., None]


def _direct(definition, leaves, case):
    return jit(
        lambda leaves: direct_scores(
            definition.bind(leaves), case.states, case.anchor, case.candidates, case.runner.head
        )
    )(leaves)


def _table(definition, dtype, leaves, case):
    def run(leaves):
        drafter = definition.bind(leaves)
        tables = build_tables(drafter, case.runner.head, dtype)
        return table_scores(drafter, tables, case.states, case.anchor, case.candidates, case.runner.head)

    return jit(run)(leaves)


@pytest.fixture(scope="module")
def case() -> Case:
    return Case.of()


def test_direct_scores_equal_float64(case):
    got = case.direct()
    assert got.dtype == jnp.float32
    for slot in range(2):
        oracle, rest = case.oracle(slot)
        np.testing.assert_array_equal(oracle.candidates(rest[0]), rest[2])
        assert_close(f"slot {slot}", got[slot], oracle.scores(*rest), FP32_OP)


def test_the_choice_depends_on_the_predecessor(case):
    """Otherwise the tests of the chain would not see a wrong predecessor."""
    scores = np.asarray(case.direct())
    assert np.ptp(scores[:, 1:], axis=2).min() > FP32_VISIBLE
    assert (scores[:, 1:].argmax(-1) != scores[:, 1:, :1].argmax(-1)).any()
    np.testing.assert_array_equal(scores[:, 0], np.broadcast_to(scores[:, 0, :1], scores[:, 0].shape))


@pytest.mark.parametrize(("dtype", "bound"), [(jnp.float32, FP32_TAIL_TABLES), (jnp.bfloat16, BF16_TAIL_TABLES)])
def test_table_scores_are_direct_scores_times_rho(case, dtype, bound):
    assert_close("scores", np.asarray(case.table(dtype)) / case.rho(), case.direct(), bound)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_both_forms_choose_what_float64_chooses(seed):
    case = Case.of(seed)
    want = []
    for slot in range(2):
        oracle, rest = case.oracle(slot)
        want.append(chain(oracle.scores(*rest), rest[2]))
    np.testing.assert_array_equal(greedy_chain(case.direct(), case.candidates), want)
    np.testing.assert_array_equal(greedy_chain(case.table(jnp.float32), case.candidates), want)


def test_row_1_is_refined_to_what_the_backbone_wrote(case):
    """Its predecessor is the anchor in both, with the same stored code."""
    drafter = case.runner.drafter
    refined = drafter.refine(case.states, case.anchor[:, None, None])
    assert_close("row 1", refined[:, 0, 0], case.states.hidden[:, 0], FP32_OP)


def test_chain_equals_a_plain_loop():
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(40, 6, 5, 5)).astype(np.float32)
    candidates = np.stack([[rng.permutation(90)[:5] for _ in range(6)] for _ in range(40)])
    got = greedy_chain(jnp.asarray(scores), jnp.asarray(candidates, dtype=jnp.int32))
    want = [chain(s, c) for s, c in zip(scores, candidates, strict=True)]
    np.testing.assert_array_equal(got, want)
    assert (np.asarray(got) != candidates[..., 0]).any()


def test_the_first_of_equal_scores_wins():
    candidates = jnp.array([[[9, 2, 5], [3, 8, 1]]], dtype=jnp.int32)
    scores = jnp.zeros((1, 2, 3, 3), jnp.float32)
    assert greedy_chain(scores, candidates).tolist() == [[9, 3]]
    scores = scores.at[0, 0, 0].set(jnp.array([1.0, 2.0, 2.0])).at[0, 1, 1, 2].set(4.0)
    assert greedy_chain(scores, candidates).tolist() == [[2, 1]]


def test_predecessors_shift_the_candidates_by_one_row():
    got = predecessors(jnp.array([7]), jnp.array([[[1, 2], [3, 4], [5, 6]]]))
    assert got.tolist() == [[[7, 7], [1, 2], [3, 4]]]


def test_a_write_that_cancels_its_row_stays_finite(case):
    """y = x + r W m(u) = 0 up to rounding: nothing is divided by a cancelled sum of squares."""
    drafter, candidates = case.runner.drafter, case.candidates
    zero = dataclasses.replace(case.states, residual=jnp.zeros_like(case.states.residual))
    oracle = case.runner.oracle
    write = oracle.w[f"injection.writes.{case.runner.config.num_hidden_layers - 1}.weight"]
    residual = np.zeros(zero.residual.shape)
    u = 2
    for slot in range(2):
        for t in range(candidates.shape[1]):
            token = int(predecessors(case.anchor, candidates)[slot, t, u])
            code = wide(case.states.code[slot, t])
            message = oracle.gates(code, oracle.code(token))
            residual[slot, t] = -float(case.states.magnitude[slot, t, 0]) * (write @ message)
    states = dataclasses.replace(zero, residual=jnp.asarray(residual, jnp.float32))
    got = np.asarray(direct_scores(drafter, states, case.anchor, candidates, case.runner.head))
    assert np.isfinite(got).all()
    # What is left of y is rounding, about 1e-7 beside eps = 1e-6 under the root: far below one unit of the norm.
    assert np.abs(got[:, :, u]).max() < 1e-2 * np.abs(np.delete(got, u, axis=2)[:, 1:]).max()
