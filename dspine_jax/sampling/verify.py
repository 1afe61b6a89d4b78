"""Two lossless ways of accepting drawn proposals: token by token, and as a block.

Row i of p is the target's law after block row i, q_i the law that proposal i was drawn from (i = 1 .. T-1, the law
of the token after row i-1), d_i the proposal. Both accept a prefix d_1 .. d_a and then emit one more token y.

Token by token (Leviathan and others 2022, Chen and others 2023): d_i is accepted with min(1, p(d_i) / q_i(d_i)) while
all before it were; at the first rejection y has the law proportional to relu(p - q), by a number of its own.

As a block (Sun and others 2024, arXiv 2403.10444): P_0 = 1, P_i = min(1, P_{i-1} p(d_i) / q_i(d_i)). The last i with
u_i < h_i is accepted, h_{last} = P_{last}, h_i = m_i / (m_i + 1 - P_i), m_i = sum_v relu(P_i p(v) - q_{i+1}(v)); then
y has the law proportional to relu(P_a p - q_{a+1}). It never accepts fewer tokens on average than the other.

When all are accepted y has the law p of the last row. A block may be cut: of slot b only its first rows[b] - 1
proposals count, and the row after them is the last. `dspine_jax.sampling.width` says when a cut keeps the law.

q is sparse, k candidates per row, and stays so: relu(P p - q) differs from P p at the candidates only, so
m = P (1 - sum over candidates of p) + sum over candidates of relu(P p - q). Written like this, and not as
P - sum of min(P p, q), two nearly equal sums are not subtracted.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from dspine_jax.sampling.draft import Draft
from dspine_jax.sampling.draws import Purpose, choose, coins, fold, gumbels, row_keys
from dspine_jax.sampling.state import Sampling
from dspine_jax.verify import leading_run


def verify_sampled(
    sampling: Sampling,
    draft: Draft,
    p: Float[Array, "B T V"],
    position: Int[Array, " B"],
    rows: Int[Array, " B"],
    *,
    method: str,
) -> tuple[Int[Array, " B"], Int[Array, "B T"]]:
    """Accepted proposals per slot, and the tokens to emit: choice 0 .. accepted. Later choices mean nothing.

    T rows of `p` were verified; the draft may be longer. `position` is the anchor's, `rows` [B] at most T.
    """
    width = p.shape[1]
    proposals, candidates, q = draft.tokens[:, : width - 1], draft.candidates[:, : width - 1], draft.q[:, : width - 1]
    # The coin for proposal i belongs to row i of the block.
    coin = coins(row_keys(sampling.seed, position, width, Purpose.ACCEPT)[:, 1:])
    accept = {"token": accept_tokens, "block": accept_block}[method]
    accepted, scale = accept(proposals, candidates, q, p, coin, rows - 1)
    weights = residual(candidates, q, p, accepted, scale, rows - 1)
    noise = gumbels(fold(sampling.seed, position, accepted, Purpose.RESIDUAL), p.shape[-1])
    final = choose(weights, noise)
    offset = jnp.arange(width)[None, :]
    padded = jnp.pad(proposals, ((0, 0), (0, 1)))
    return accepted, jnp.where(offset < accepted[:, None], padded, final[:, None]).astype(draft.tokens.dtype)


def accept_tokens(
    proposals: Int[Array, "B T-1"],
    candidates: Int[Array, "B T-1 k"],
    q: Float[Array, "B T-1 k"],
    p: Float[Array, "B T V"],
    coin: Float[Array, "B T-1"],
    limit: Int[Array, " B"],
) -> tuple[Int[Array, " B"], Float[Array, " B"]]:
    """Accepted proposals, at most `limit`, and the scale 1 of the residual."""
    p_drawn, q_drawn = _at_proposals(proposals, candidates, q, p)
    offset = jnp.arange(proposals.shape[1])[None, :]
    matches = (coin * q_drawn < p_drawn) & (offset < limit[:, None])
    return leading_run(matches), jnp.ones(limit.shape, p.dtype)


def accept_block(
    proposals: Int[Array, "B T-1"],
    candidates: Int[Array, "B T-1 k"],
    q: Float[Array, "B T-1 k"],
    p: Float[Array, "B T V"],
    coin: Float[Array, "B T-1"],
    limit: Int[Array, " B"],
) -> tuple[Int[Array, " B"], Float[Array, " B"]]:
    """Accepted proposals, at most `limit`, and the scale P_a of the residual."""
    p_drawn, q_drawn = _at_proposals(proposals, candidates, q, p)
    prefix = running_ratio(p_drawn / q_drawn)  # [B, T-1]: P_1 .. P_{T-1}
    # After d_i comes q_{i+1}; there is none after the last proposal, whose h is P itself.
    at_candidates = jnp.take_along_axis(p[:, 1:-1], candidates[:, 1:], axis=2)
    outside = jnp.maximum(1 - jnp.sum(at_candidates, axis=-1), 0.0)
    over = jnp.sum(jnp.maximum(prefix[:, :-1, None] * at_candidates - q[:, 1:], 0.0), axis=-1)
    mass = prefix[:, :-1] * outside + over
    short = 1 - prefix[:, :-1]
    accept = jnp.where(short <= 0, 1.0, mass / jnp.where(short <= 0, 1.0, mass + short))
    number = jnp.arange(1, proposals.shape[1] + 1)[None, :]
    accept = jnp.where(number == limit[:, None], prefix, jnp.pad(accept, ((0, 0), (0, 1))))
    accepted = jnp.max(jnp.where((coin < accept) & (number <= limit[:, None]), number, 0), axis=1)
    with_start = jnp.concatenate([jnp.ones_like(prefix[:, :1]), prefix], axis=1)
    return accepted, jnp.take_along_axis(with_start, accepted[:, None], axis=1)[:, 0]


def running_ratio(ratio: Float[Array, "B T-1"]) -> Float[Array, "B T-1"]:
    """P_i = min(1, P_{i-1} ratio_i), P_0 = 1."""

    def step(last, ratio):
        last = jnp.minimum(last * ratio, 1.0)
        return last, last

    _, out = jax.lax.scan(step, jnp.ones_like(ratio[:, 0]), jnp.moveaxis(ratio, 1, 0))
    return jnp.moveaxis(out, 0, 1)


def residual(
    candidates: Int[Array, "B T-1 k"],
    q: Float[Array, "B T-1 k"],
    p: Float[Array, "B T V"],
    accepted: Int[Array, " B"],
    scale: Float[Array, " B"],
    limit: Int[Array, " B"],
) -> Float[Array, "B V"]:
    """What the token after the accepted ones is drawn from, not normalised: relu(scale p - q), or p at the end."""
    row = _take(p, accepted)
    at = jnp.minimum(accepted, candidates.shape[1] - 1)
    slot = jnp.arange(row.shape[0])[:, None]
    rest = (scale[:, None] * row).at[slot, _take(candidates, at)].add(-_take(q, at))
    rest = jnp.maximum(rest, 0.0)
    # Where p and q are equal up to rounding, a rejection, itself made by rounding, may leave nothing.
    whole = (accepted >= limit) | (jnp.sum(rest, axis=-1) <= 0)
    return jnp.where(whole[:, None], row, rest)


def _at_proposals(proposals, candidates, q, p):
    """p and q [B, T-1] of the drawn tokens. A drawn token has positive q."""
    p_drawn = jnp.take_along_axis(p[:, :-1], proposals[..., None], axis=2)[..., 0]
    q_drawn = jnp.sum(jnp.where(candidates == proposals[..., None], q, 0.0), axis=-1)
    return p_drawn, q_drawn


def _take(x, row):
    return jnp.take_along_axis(x, row.reshape(-1, *(1,) * (x.ndim - 1)), axis=1)[:, 0]
