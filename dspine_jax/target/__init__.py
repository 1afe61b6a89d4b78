"""The target language model (`qwen3_5` text stack or `qwen3`): gated delta nets and full attention."""

from dspine_jax.target.model import Target

__all__ = ["Target"]
