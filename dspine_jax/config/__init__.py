"""Configurations of the two models, read strictly from their checkpoints, and the pair check."""

from dspine_jax.config.drafter import DrafterConfig
from dspine_jax.config.pair import check_pair
from dspine_jax.config.quantization import BlockFp8
from dspine_jax.config.strict import ConfigError
from dspine_jax.config.target import TargetConfig

__all__ = ["BlockFp8", "ConfigError", "DrafterConfig", "TargetConfig", "check_pair"]
