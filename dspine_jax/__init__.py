"""Lossless speculative decoding with the DSpine block drafter.

    pair = dspine_jax.load("folder that `dspine convert` wrote")
    result = dspine_jax.generate(pair, [[1, 2, 3]], max_new_tokens=64)

The engine knows token ids only; text lives in `serve`.
"""

from dspine_jax.config import ConfigError, DrafterConfig, TargetConfig
from dspine_jax.drafter.propose import DraftOptions
from dspine_jax.errors import WeightsError
from dspine_jax.generate import Generation, Stats, Stream, generate, generate_plain
from dspine_jax.load import load, load_hf
from dspine_jax.measure import measure_widths
from dspine_jax.pair import Pair, build_pair
from dspine_jax.sampling import SamplingParams, WidthCosts

__all__ = [
    "ConfigError",
    "DraftOptions",
    "DrafterConfig",
    "Generation",
    "Pair",
    "SamplingParams",
    "Stats",
    "Stream",
    "TargetConfig",
    "WeightsError",
    "WidthCosts",
    "build_pair",
    "generate",
    "generate_plain",
    "load",
    "load_hf",
    "measure_widths",
]
