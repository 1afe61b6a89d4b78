"""A target whose next token depends on the last one only, with a drafter as good or bad as wanted.

Everything around the two models is the real thing: requests, loop, chain, verifiers, width, counting. The law of
every emitted token is known exactly from the one before it, so each token of a long request is a draw.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from dspine_jax.pair import Pair
from tests.tiny import tiny_drafter_config, tiny_target_config

VOCAB, KEEP, BLOCK = 5, 3, 16
KINDS = ("random", "copy", "wrong", "stumbling")
RANDOM, COPY, WRONG, STUMBLING = range(len(KINDS))

_rng = np.random.default_rng(29)
# [last, next]. Two tokens are rare, so that the three candidates of a row can be nearly all of the law.
LOGITS = (_rng.normal(0.0, 0.9, (VOCAB, VOCAB)) - np.array([0, 0, 0, 1.6, 1.9])).astype(np.float32)
# Per kind but the last, scores of the next token: unrelated to the target's, near them, or high where they are low.
SCORES = np.stack(
    [
        _rng.normal(0.0, 0.2, LOGITS.shape),
        LOGITS + _rng.normal(0.0, 0.1, LOGITS.shape),
        -3.0 * LOGITS,
    ]
).astype(np.float32)
# Likewise the candidates of every row: never all tokens, and in an order that changes from row to row. They are the
# tokens that are not rare, but for every third row of the random drafter.
CANDIDATES = np.stack(
    [
        [_rng.permutation(VOCAB if (kind, row % 3) == (RANDOM, 1) else KEEP)[:KEEP] for row in range(BLOCK - 1)]
        for kind in range(len(SCORES))
    ]
).astype(np.int32)
# The stumbling drafter is wrong at every fourth position and near the law elsewhere: it is rejected in every row.
PERIOD = 4


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
        row = jnp.arange(BLOCK - 1)
        stumble = jnp.where((position[:, None] + row) % PERIOD == 0, WRONG, COPY)
        kind = jnp.where(self.kind[:, None] == STUMBLING, stumble, self.kind[:, None])  # [B, T-1]
        candidates = jnp.asarray(CANDIDATES)[kind, row]
        first = jnp.broadcast_to(anchor[:, None, None], (anchor.shape[0], 1, KEEP))
        before = jnp.concatenate([first, candidates[:, :-1]], axis=1)
        return jnp.asarray(SCORES)[kind[..., None, None], before[..., None], candidates[:, :, None]], candidates

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


FILTERS = {"top_k": 3, "top_p": 0.85, "min_p": 0.2}
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


@dataclasses.dataclass(frozen=True)
class Fit:
    """A statistic that has the chi-squared law when the hypothesis is true; infinite: it is certainly false."""

    statistic: float
    freedom: int

    @property
    def p_value(self) -> float:
        return float(stats.chi2.sf(self.statistic, self.freedom)) if self.freedom else 1.0


IMPOSSIBLE = Fit(np.inf, 1)


def together(fits: Iterable[Fit]) -> Fit:
    """One statistic of independent ones: it finds what is wrong a little in each of them."""
    fits = list(fits)
    return Fit(sum(fit.statistic for fit in fits), sum(fit.freedom for fit in fits))


def pearson(counts: np.ndarray, expected: np.ndarray) -> Fit:
    """Pearson's test of one multinomial; cells that expect fewer than 5 are put together."""
    rare = expected < 5
    seen = np.append(counts[~rare], counts[rare].sum())
    wanted = np.append(expected[~rare], expected[rare].sum())
    if wanted[-1] < 5:  # even together: they join the smallest of the others
        if len(wanted) < 3:
            return Fit(0.0, 0)
        least = np.argmin(wanted[:-1])
        seen[least] += seen[-1]
        wanted[least] += wanted[-1]
        seen, wanted = seen[:-1], wanted[:-1]
    return Fit(float(np.sum((seen - wanted) ** 2 / wanted)), len(wanted) - 1)


def homogeneity(one: np.ndarray, other: np.ndarray) -> Fit:
    """Whether two multinomials have one law, by the cells that expect at least 5 of both."""
    table = np.stack([one, other])
    # The choice looks at the sums only, and given those the hypothesis says the same of the chosen cells.
    table = table[:, _expected(table).min(axis=0) >= 5]
    if table.shape[1] < 2:
        return Fit(0.0, 0)
    expected = _expected(table)
    return Fit(float(np.sum((table - expected) ** 2 / expected)), table.shape[1] - 1)


def _expected(table):
    return np.outer(table.sum(axis=1), table.sum(axis=0)) / max(table.sum(), 1)


def joint_p_value(counts: np.ndarray, law: np.ndarray) -> float:
    """Pearson's test of counts against a law of the same shape; 0 when something impossible happened."""
    if counts[law == 0].any():
        return 0.0
    return pearson(counts.ravel(), counts.sum() * law.ravel()).p_value


def two_sample_p_value(one: np.ndarray, other: np.ndarray) -> float:
    """Whether two tables of counts come from one law."""
    return homogeneity(one.ravel(), other.ravel()).p_value


def transition_counts(runs: Sequence[np.ndarray]) -> np.ndarray:
    """[a, b, c] how often c came after a, b: every token after the second is a draw. `runs` are equally long."""
    tokens = np.stack(runs)
    code = (tokens[:, :-2] * VOCAB + tokens[:, 1:-1]) * VOCAB + tokens[:, 2:]
    return np.bincount(code.ravel(), minlength=VOCAB**3).reshape(VOCAB, VOCAB, VOCAB).astype(np.float64)


def transition_fit(counts: np.ndarray, law: np.ndarray) -> Fit:
    """Pearson's test that after any two tokens (a, b) the next one has law[b]."""
    if counts[:, law == 0].any():
        return IMPOSSIBLE
    return together(pearson(counts[a, b], counts[a, b].sum() * law[b]) for a, b in np.ndindex(VOCAB, VOCAB))


def same_transitions(one: np.ndarray, other: np.ndarray) -> Fit:
    """Whether after any two tokens the next one has the same law in both samples."""
    return together(homogeneity(one[a, b], other[a, b]) for a, b in np.ndindex(VOCAB, VOCAB))
