"""Inputs of the tail, and its scores in float64."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from pallas_kernels.bridge import BridgeGates
from tests import oracle_drafter
from tests.oracle_drafter import wide

EPS = 1e-6


@dataclasses.dataclass(frozen=True)
class TailCase:
    """Arguments of `tail_scores`: every position has its own candidates, and the message moves the residual visibly."""

    x: Any
    magnitude: Any
    code: Any
    predecessor: Any
    head: Any
    write: Any
    norm: Any
    gates: BridgeGates

    @staticmethod
    def draw(
        seed: int,
        *,
        slots: int,
        positions: int,
        hidden: int,
        code: int,
        message: int,
        choices: int = 16,
        dtype: Any = jnp.bfloat16,
    ) -> "TailCase":
        """Fresh values; `dtype` is that of everything but magnitudes and codes."""
        rng = np.random.default_rng(seed)

        def draw(*shape, scale=1.0):
            return jnp.asarray(rng.normal(0.0, scale, shape), dtype)

        x = draw(slots, positions, hidden, scale=3.0)
        receiver, predecessor, heard = (draw(message, code, scale=code**-0.5) for _ in range(3))
        codes = rng.normal(0.0, 1.0, (slots, positions, code))
        codes *= code**0.5 / np.linalg.norm(codes, axis=-1, keepdims=True)
        return TailCase(
            x=x,
            magnitude=jnp.sqrt(jnp.mean(jnp.square(x.astype(jnp.float32)), axis=-1, keepdims=True)),
            code=jnp.asarray(codes, jnp.float32),
            predecessor=draw(slots, positions, choices, code, scale=code**-0.5),
            head=draw(slots, positions, choices, hidden, scale=0.05),
            write=draw(hidden, message, scale=message**-0.5),
            norm=1 + draw(hidden, scale=0.3),
            gates=BridgeGates(receiver, predecessor, heard, draw(message)),
        )

    @staticmethod
    def draw_whole(seed: int, *, slots: int, positions: int, hidden: int, message: int) -> "TailCase":
        """Small whole numbers: every sum is exact, in whatever order it is taken. All gates are fully open."""
        rng = np.random.default_rng(seed)
        code = 256  # its square root is whole

        def draw(*shape, most=1, unit=1.0):
            return jnp.asarray(unit * rng.integers(-most, most + 1, shape), jnp.bfloat16)

        return TailCase(
            x=draw(slots, positions, hidden, most=9),
            magnitude=jnp.ones((slots, positions, 1), jnp.float32),
            code=draw(slots, positions, code).astype(jnp.float32),
            predecessor=draw(slots, positions, 16, code),
            head=draw(slots, positions, 16, hidden, most=3),
            write=draw(hidden, message),
            norm=1 + jnp.abs(draw(hidden)),
            gates=BridgeGates(
                receiver_gate=draw(message, code, unit=2.0**-8),
                predecessor_gate=draw(message, code, unit=2.0**-8),
                message=draw(message, code, unit=2.0**-4),
                gate_bias=jnp.full((message,), 256.0, jnp.bfloat16),
            ),
        )

    @property
    def arguments(self) -> tuple[Any, ...]:
        """Positional arguments of `tail_scores`."""
        return tuple(getattr(self, field.name) for field in dataclasses.fields(self))

    def cancelled(self, share: float) -> "TailCase":
        """Each position's first predecessor writes `-share` of the residual, up to the residual's rounding."""
        writes = self.update()[:, :, 0]
        return dataclasses.replace(self, x=jnp.asarray(-writes / share, self.x.dtype))

    def update(self) -> np.ndarray:
        """r W m(u) in float64, [B, P, U, H]."""
        g = self.gates
        gates = oracle_drafter.Gates(
            wide(g.receiver_gate), wide(g.predecessor_gate), wide(g.message), wide(g.gate_bias)
        )
        scale = self.code.shape[-1] ** 0.5

        def message(own, stored):
            return np.stack([gates(own, scale * row) for row in stored])

        code, predecessor = wide(self.code), wide(self.predecessor)
        m = np.stack([[message(*p) for p in zip(*slot, strict=True)] for slot in zip(code, predecessor, strict=True)])
        return wide(self.magnitude)[..., None] * (m @ wide(self.write).T)

    def expected(self) -> np.ndarray:
        """s in float64."""
        y = wide(self.x)[:, :, None] + self.update()
        h = wide(self.norm) * y / np.sqrt((y**2).mean(-1, keepdims=True) + EPS)
        return np.einsum("bpuh,bpvh->bpuv", h, wide(self.head))
