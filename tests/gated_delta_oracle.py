"""The gated delta rule in float64 NumPy, token by token, and inputs to try it on."""

import dataclasses
from typing import Self

import jax.numpy as jnp
import numpy as np


@dataclasses.dataclass(frozen=True)
class Inputs:
    """Rows of q, k [B, T, Nk, K], v [B, T, Nv, V], g, beta [B, T, Nv]; a state [B, Nv, V, K]; all float32."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    g: np.ndarray
    beta: np.ndarray
    state: np.ndarray

    @property
    def rows(self) -> tuple[np.ndarray, ...]:
        return self.q, self.k, self.v, self.g, self.beta

    def slice(self, start: int = 0, stop: int | None = None) -> tuple[jnp.ndarray, ...]:
        """Rows start .. stop - 1 as arguments of an op."""
        return tuple(jnp.asarray(x[:, start:stop]) for x in self.rows)

    def replace(self, **changes) -> Self:
        return dataclasses.replace(
            self, **{name: np.asarray(value, dtype=np.float32) for name, value in changes.items()}
        )


def draw(rows: int, seed: int, *, batch=2, key_heads=3, value_heads=6, key_dim=8, value_dim=12) -> Inputs:
    """Normalised queries and keys, decays from nearly none to strong, and a state of unit scale."""
    rng = np.random.default_rng(seed)

    def unit(*shape):
        x = rng.normal(size=shape)
        return x / np.linalg.norm(x, axis=-1, keepdims=True)

    q = unit(batch, rows, key_heads, key_dim) * key_dim**-0.5
    k = unit(batch, rows, key_heads, key_dim)
    v = rng.normal(size=(batch, rows, value_heads, value_dim))
    g = -np.exp(rng.uniform(np.log(1e-3), np.log(3.0), (batch, rows, value_heads)))
    beta = 1 / (1 + np.exp(-2 * rng.normal(size=(batch, rows, value_heads))))
    state = rng.normal(size=(batch, value_heads, value_dim, key_dim))
    return Inputs(*(np.asarray(x, dtype=np.float32) for x in (q, k, v, g, beta, state)))


def recurrence(inputs: Inputs, rows: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Outputs [B, T, Nv, V] and final state [B, Nv, V, K] of the first `rows` rows (all without it)."""
    q, k, v, g, beta = (x[:, :rows].astype(np.float64) for x in inputs.rows)
    state = inputs.state.astype(np.float64)
    repeat = v.shape[2] // k.shape[2]
    q, k = np.repeat(q, repeat, axis=2), np.repeat(k, repeat, axis=2)
    o = np.zeros_like(v)
    for t in range(v.shape[1]):
        state = state * np.exp(g[:, t])[..., None, None]
        read = (state * k[:, t][..., None, :]).sum(-1)
        delta = beta[:, t][..., None] * (v[:, t] - read)
        state = state + delta[..., :, None] * k[:, t][..., None, :]
        o[:, t] = (state * q[:, t][..., None, :]).sum(-1)
    return o, state
