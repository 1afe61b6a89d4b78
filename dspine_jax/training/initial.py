"""Random initial weights by parameter name."""

from collections.abc import Mapping

import jax
import numpy as np


def initial_weights(
    abstract: Mapping[str, jax.ShapeDtypeStruct], *, seed: int, ones: bool, layers: int
) -> dict[str, np.ndarray]:
    """Float32 weights. `ones`: norm weights start at one (drafter), otherwise at zero (target: offsets from one).

    Matrices are normal with std 1/sqrt(in); those that write into the residual stream are smaller by sqrt(2 layers).
    """
    rng = np.random.default_rng(seed)
    return {name: _draw(rng, name, spec.shape, ones, layers) for name, spec in abstract.items()}


def _draw(rng: np.random.Generator, name: str, shape: tuple[int, ...], ones: bool, layers: int) -> np.ndarray:
    leaf = name.removesuffix(".weight").rsplit(".", 1)[-1]
    if name.endswith("linear_attn.norm.weight"):
        return np.ones(shape, np.float32)
    if leaf.endswith(("norm", "layernorm")):
        return np.full(shape, float(ones), np.float32)
    if leaf == "A_log":
        return np.log(rng.uniform(1.0, 16.0, shape)).astype(np.float32)
    if leaf == "dt_bias":
        # Inverse softplus of a log-uniform time step: decays from nearly none to a few tokens.
        step = np.exp(rng.uniform(np.log(1e-3), np.log(1e-1), shape))
        return (step + np.log(-np.expm1(-step))).astype(np.float32)
    if leaf == "gate_bias":
        return np.zeros(shape, np.float32)
    if leaf in ("embed_tokens", "lm_head"):
        return rng.normal(0.0, 0.02 if leaf == "lm_head" else 0.5, shape).astype(np.float32)
    if leaf == "codebook":
        rows = rng.normal(size=shape)
        return (rows / np.linalg.norm(rows, axis=-1, keepdims=True)).astype(np.float32)
    std = shape[-1] ** -0.5
    if leaf in ("o_proj", "out_proj", "down_proj") or ".writes." in name:
        std /= (2 * layers) ** 0.5
    return rng.normal(0.0, std, shape).astype(np.float32)
