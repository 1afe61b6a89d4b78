"""Reading of Hugging Face checkpoints: safetensors files, name tables, and their exact resolution."""

from dspine_jax.errors import WeightsError
from dspine_jax.hf.pair import open_pair, read_pair_hf

__all__ = ["WeightsError", "open_pair", "read_pair_hf"]
