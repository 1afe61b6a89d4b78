"""A target whose next token depends on the last one only, with a drafter as good or bad as wanted.

Everything around the two models is the real thing: requests, loop, chain, verifiers, width, counting. The law of
every emitted token is known exactly from the one before it, so each token of a long request is a draw.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from dspine_jax.pair import Pair
from tests.tiny import tiny_drafter_config, tiny_target_config

VOCAB, KEEP, BLOCK = 5, 3, 16
KINDS = ("random", "copy", "wrong")

_rng = np.random.default_rng(11)
LOGITS = _rng.normal(0.0, 1.4, (VOCAB, VOCAB)).astype(np.float32)  # [last, next]
# Per kind: scores of the next token. "copy" is near the target's law, "wrong" nearly sure of its least likely token.
SCORES = np.stack(
    [
        _rng.normal(0.0, 1.4, LOGITS.shape),
        LOGITS + _rng.normal(0.0, 0.2, LOGITS.shape),
        np.where(LOGITS.min(axis=1, keepdims=True) == LOGITS, 9.0, 0.0),
    ]
).astype(np.float32)
# The candidates of every row: which, and in which order, changes from row to row; not all tokens are among them.
CANDIDATES = np.stack([_rng.permutation(VOCAB)[:KEEP] for _ in range(BLOCK - 1)]).astype(np.int32)


@functools.partial(jax.tree_util.register_dataclass, data_fields=["kind"], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class Weights:
    kind: jax.Array  # [B] the drafter of each slot


@dataclasses.dataclass(frozen=True)
class MarkovPlan:
    name: str = ""  # another name is another program
    drafts: bool = True
    on_pass: Callable[[int], None] | None = None  # told the number of rows of each target pass, while it runs
    taps: tuple[int, ...] = ()

    def bind(self, weights: Weights):
        return MarkovTarget(self.on_pass), MarkovDrafting(weights.kind) if self.drafts else None


@dataclasses.dataclass(frozen=True)
class MarkovTarget:
    on_pass: Callable[[int], None] | None = None

    def __call__(self, ids, rows, cache, taps=()):
        if self.on_pass is not None:
            jax.debug.callback(functools.partial(self.on_pass, ids.shape[1]))
        return jax.nn.one_hot(ids, VOCAB, dtype=jnp.float32), jnp.zeros((*ids.shape, 0)), cache

    def logits(self, hidden):
        return jnp.asarray(LOGITS)[jnp.argmax(hidden, axis=-1)]


@dataclasses.dataclass(frozen=True)
class MarkovDrafting:
    kind: jax.Array

    def propose(self, anchor, position, cache):
        raise AssertionError("a sampled batch draws from the tables")

    def tables(self, anchor, position, cache):
        batch = anchor.shape[0]
        candidates = jnp.broadcast_to(jnp.asarray(CANDIDATES), (batch, *CANDIDATES.shape))
        first = jnp.broadcast_to(anchor[:, None, None], (batch, 1, KEEP))
        before = jnp.concatenate([first, candidates[:, :-1]], axis=1)
        kind = self.kind[:, None, None, None]
        return jnp.asarray(SCORES)[kind, before[..., None], candidates[:, :, None]], candidates

    def write_context(self, features, positions, valid, cache):
        return cache


class MarkovPair(Pair):
    @property
    def plain_plan(self):  # type: ignore[override]
        return MarkovPlan(drafts=False)


def markov_pair(kinds: Sequence[int], name: str = "", *, on_pass: Callable[[int], None] | None = None) -> MarkovPair:
    """`kinds` are the slots' drafters, indices into KINDS; as many as the batch has slots."""
    target, drafter = _models()
    return MarkovPair(
        target_config=target,
        drafter_config=drafter,
        plan=MarkovPlan(name, on_pass=on_pass),  # type: ignore[arg-type]
        weights=Weights(jnp.asarray(kinds, jnp.int32)),  # type: ignore[arg-type]
        dtype=jnp.dtype("float32"),
    )


@functools.cache
def _models():
    # The models are never run; their configurations size the caches, which are kept as small as they can be.
    target = tiny_target_config(
        vocab_size=VOCAB,
        max_position_embeddings=4096,
        num_hidden_layers=3,
        layer_types=("linear_attention",) * 3,
        linear_num_key_heads=1,
        linear_num_value_heads=1,
        linear_key_head_dim=1,
        linear_value_head_dim=1,
        hidden_size=VOCAB,
    )
    drafter = tiny_drafter_config(
        target,
        num_hidden_layers=1,
        layer_types=("sliding_attention",),
        sliding_window=BLOCK,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=2,
        block_size=BLOCK,
        head_topk=KEEP,
    )
    return target, drafter


FILTERS = {"top_k": 3, "top_p": 0.8, "min_p": 0.1}
# Every temperature with every combination of filters.
LAWS = [
    {"temperature": temperature, **{name: FILTERS[name] for name in names}}
    for temperature in (0.3, 1.0, 1.5)
    for count in range(len(FILTERS) + 1)
    for names in itertools.combinations(FILTERS, count)
]


def reference_law(logits, *, temperature, top_k=None, top_p=None, min_p=None) -> np.ndarray:
    """[V] float64, by sorting: the documented definition, written once more."""
    logits = np.asarray(logits, np.float64)
    if temperature == 0:
        return np.eye(len(logits))[np.argmax(logits)]
    p = np.exp((logits - logits.max()) / temperature)
    order = np.argsort(-logits, kind="stable")
    kept = np.zeros(len(p), bool)
    kept[order[: top_k or len(p)]] = True
    p = np.where(kept, p, 0) / p[kept].sum()
    if top_p is not None and top_p < 1:
        before = np.cumsum(p[order]) - p[order]
        kept[order[before >= top_p]] = False
    kept &= p >= (min_p or 0) * p.max()
    return np.where(kept, p, 0) / p[kept].sum()


def pearson(counts: np.ndarray, expected: np.ndarray) -> tuple[float, int]:
    """Statistic and degrees of freedom of one multinomial; cells that expect fewer than 5 are put together."""
    rare = expected < 5
    seen = np.append(counts[~rare], counts[rare].sum())
    wanted = np.append(expected[~rare], expected[rare].sum())
    if wanted[-1] < 5:  # even together: they join the smallest of the others
        if len(wanted) < 3:
            return 0.0, 0
        least = np.argmin(wanted[:-1])
        seen[least] += seen[-1]
        wanted[least] += wanted[-1]
        seen, wanted = seen[:-1], wanted[:-1]
    return float(np.sum((seen - wanted) ** 2 / wanted)), len(wanted) - 1


def joint_p_value(counts: np.ndarray, law: np.ndarray) -> float:
    """Pearson's test of counts against a law of the same shape; 0 when something impossible happened."""
    if counts[law == 0].any():
        return 0.0
    statistic, freedom = pearson(counts.ravel(), counts.sum() * law.ravel())
    return float(stats.chi2.sf(statistic, freedom)) if freedom else 1.0


def transition_counts(runs: Sequence[np.ndarray]) -> np.ndarray:
    """[a, b, c] how often c came after a, b: every token after the second is a draw."""
    counts = np.zeros((VOCAB, VOCAB, VOCAB))
    for run in runs:
        np.add.at(counts, (run[:-2], run[1:-1], run[2:]), 1)
    return counts


def transition_p_value(counts: np.ndarray, law: np.ndarray) -> float:
    """Pearson's test that after any two tokens (a, b) the next one has law[b]; 0 when an impossible one came."""
    if counts[:, law == 0].any():
        return 0.0
    rows = [pearson(counts[a, b], counts[a, b].sum() * law[b]) for a in range(VOCAB) for b in range(VOCAB)]
    statistic, freedom = np.sum(rows, axis=0)
    return float(stats.chi2.sf(statistic, freedom)) if freedom else 1.0


def two_sample_p_value(one: np.ndarray, other: np.ndarray) -> float:
    """Whether two tables of counts come from one law: homogeneity of the cells that both fill well."""
    common = (one + other).ravel() >= 10
    table = np.stack([one.ravel()[common], other.ravel()[common]])
    _, p_value, *_ = stats.chi2_contingency(table, correction=False)
    return float(np.asarray(p_value))
