"""Inputs of `gated_delta_replay` and what must come out, in float64 and row by row."""

import dataclasses
from collections.abc import Callable, Sequence

import jax.numpy as jnp
import numpy as np

from pallas_kernels.gated_delta import Records
from tests.gated_delta_oracle import Inputs, draw

Change = Callable[[Inputs], Inputs]


@dataclasses.dataclass(frozen=True)
class Case:
    """Arguments, and the outputs, state and deltas [B, Nv, V, T] they give."""

    arguments: tuple
    o: np.ndarray
    state: np.ndarray
    d: np.ndarray


def case(
    accepted: Sequence[int],
    seed: int,
    *,
    rows: int = 16,
    recorded: int = 16,
    key_heads: int = 1,
    value_heads: int = 3,
    value_dim: int = 128,
    key_dim: int = 128,
    changes: Sequence[Change] | None = None,
) -> Case:
    """A block after one whose first `accepted` rows count, per slot; the others are NaN. `changes` go slot by slot."""
    inputs = draw(
        recorded + rows,
        seed,
        batch=len(accepted),
        key_heads=key_heads,
        value_heads=value_heads,
        key_dim=key_dim,
        value_dim=value_dim,
    )
    if changes is not None:
        inputs = by_slot(inputs, changes)
    before, block = cut(inputs, 0, recorded), cut(inputs, recorded, recorded + rows)
    deltas = tokens(before)[2].astype(np.float32)
    state = fold(inputs.state, before, deltas, accepted)
    o, _, d = tokens(block, state)
    rejected = np.arange(recorded)[None, :] >= np.asarray(accepted)[:, None]  # [B, R]
    records = Records(
        k=jnp.asarray(np.where(rejected[..., None, None], np.nan, before.k)),
        d=jnp.asarray(np.where(rejected[:, None, None, :], np.nan, deltas)),
        g=jnp.asarray(np.where(rejected[..., None], np.nan, before.g)),
    )
    arguments = jnp.asarray(inputs.state), records, jnp.asarray(accepted, jnp.int32), *block.slice()
    return Case(arguments, o, state, d)


def tokens(rows: Inputs, state: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Outputs [B, T, Nv, V], final state and deltas [B, Nv, V, T] in float64, from rows.state unless given another."""
    q, k, v, g, beta = (x.astype(np.float64) for x in rows.rows)
    repeat = v.shape[2] // k.shape[2]
    q, k = np.repeat(q, repeat, axis=2), np.repeat(k, repeat, axis=2)
    current = (rows.state if state is None else state).astype(np.float64)
    o, d = [], []
    for t in range(v.shape[1]):
        current = current * np.exp(g[:, t])[..., None, None]
        d.append(beta[:, t, :, None] * (v[:, t] - np.einsum("bnvk,bnk->bnv", current, k[:, t])))
        current = current + d[-1][..., :, None] * k[:, t, :, None, :]
        o.append(np.einsum("bnvk,bnk->bnv", current, q[:, t]))
    return np.stack(o, axis=1), current, np.stack(d, axis=-1)


def fold(state: np.ndarray, rows: Inputs, deltas: np.ndarray, accepted: Sequence[int]) -> np.ndarray:
    """The state [B, Nv, V, K] after `accepted` rows with these deltas, in float64."""
    state = state.astype(np.float64)
    repeat = deltas.shape[1] // rows.k.shape[2]
    for slot, count in enumerate(accepted):
        for j in range(count):
            k = np.repeat(rows.k[slot, j], repeat, axis=0).astype(np.float64)  # [Nv, K]
            decay = np.exp(rows.g[slot, j].astype(np.float64))[:, None, None]
            state[slot] = state[slot] * decay + deltas[slot, :, :, j, None] * k[:, None, :]
    return state


def cut(inputs: Inputs, start: int, stop: int) -> Inputs:
    """Rows start .. stop - 1."""
    q, k, v, g, beta = (x[:, start:stop] for x in inputs.rows)
    return Inputs(q, k, v, g, beta, inputs.state)


def by_slot(inputs: Inputs, changes: Sequence[Change]) -> Inputs:
    """Slot b as changes[b] makes it."""
    fields = [field.name for field in dataclasses.fields(Inputs)]
    changed = []
    for slot, change in enumerate(changes):
        changed.append(change(Inputs(*(getattr(inputs, name)[slot : slot + 1] for name in fields))))
    return Inputs(*(np.concatenate([getattr(slot, name) for slot in changed]) for name in fields))


def unchanged(inputs: Inputs) -> Inputs:
    return inputs


def odd_zeros(inputs: Inputs) -> Inputs:
    """A negative zero and a denormal in the state."""
    state = inputs.state.copy()
    state[..., :2] = -0.0, 1e-42
    return inputs.replace(state=state)


def equal_keys(inputs: Inputs) -> Inputs:
    """Every row overwrites the same entry and nothing decays: the worst system to solve."""
    k = np.broadcast_to(inputs.k[:, :1], inputs.k.shape)
    return inputs.replace(k=k, beta=np.ones_like(inputs.beta), g=np.zeros_like(inputs.g))


def alternating_keys(inputs: Inputs) -> Inputs:
    """The same with every second key negated, and nearly equal instead of equal."""
    sign = (-1.0) ** np.arange(inputs.k.shape[1])[None, :, None, None]
    k = (inputs.k[:, :1] + 1e-3 * inputs.k) * sign
    k = k / np.linalg.norm(k, axis=-1, keepdims=True)
    return inputs.replace(k=k, beta=np.ones_like(inputs.beta), g=np.zeros_like(inputs.g))


def steep_decay(inputs: Inputs) -> Inputs:
    """Log decays from 0 to -40 beside each other: sums of them lose the small ones."""
    return inputs.replace(g=-40 * np.random.default_rng(0).random(inputs.g.shape) ** 4)


def lost_memory(inputs: Inputs) -> Inputs:
    """Some rows forget everything, far beyond what an exponential can tell."""
    rng = np.random.default_rng(1)
    return inputs.replace(g=np.where(rng.random(inputs.g.shape) < 0.2, -1e6 * rng.random(inputs.g.shape), inputs.g))


def large_state(inputs: Inputs) -> Inputs:
    """A state of rms 10 that does not decay."""
    return inputs.replace(state=10 * inputs.state, g=np.zeros_like(inputs.g))


HARD = (equal_keys, alternating_keys, steep_decay, lost_memory, large_state)
