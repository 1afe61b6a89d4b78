"""Inputs of the bridge, and what it gives in float64."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from pallas_kernels.bridge import BridgeGates
from tests import oracle_drafter
from tests.oracle_drafter import wide

EPS = 1e-6


@dataclasses.dataclass(frozen=True)
class BridgeCase:
    """Arguments of `bridge`; the weights keep gates away from 0 and 1, rows differ in size by a factor of 300."""

    x: Any
    anchor_code: Any
    readout: Any
    write: Any
    gates: BridgeGates

    @staticmethod
    def draw(
        seed: int, *, slots: int, block_rows: int, hidden: int, code: int, message: int, dtype: Any = jnp.bfloat16
    ) -> "BridgeCase":
        """Fresh values; `dtype` is that of everything but the anchors' codes."""
        rng = np.random.default_rng(seed)

        def draw(*shape, scale=1.0):
            return jnp.asarray(rng.normal(0.0, scale, shape), dtype)

        sizes = jnp.asarray(rng.uniform(0.1, 30.0, (slots, block_rows, 1)), dtype)
        receiver, predecessor, heard = (draw(message, code, scale=code**-0.5) for _ in range(3))
        return BridgeCase(
            x=draw(slots, block_rows, hidden) * sizes,
            anchor_code=jnp.asarray(rng.normal(0.0, 1.0, (slots, code)), jnp.float32),
            readout=draw(code, hidden, scale=hidden**-0.5),
            write=draw(hidden, message, scale=message**-0.5),
            gates=BridgeGates(receiver, predecessor, heard, draw(message)),
        )

    @property
    def arguments(self) -> tuple[Any, ...]:
        """Positional arguments of `bridge`."""
        return self.x, self.anchor_code, self.readout, self.write, self.gates

    def expected(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """x', r and c of all blocks in float64."""
        g = self.gates
        gates = oracle_drafter.Gates(
            wide(g.receiver_gate), wide(g.predecessor_gate), wide(g.message), wide(g.gate_bias)
        )
        weights = wide(self.readout), wide(self.write), gates, EPS
        slots = zip(wide(self.x), wide(self.anchor_code), strict=True)
        blocks = [oracle_drafter.bridge(x, anchor_code, *weights) for x, anchor_code in slots]
        x, r, c = (np.stack(parts) for parts in zip(*blocks, strict=True))
        return x, r[..., None], c
