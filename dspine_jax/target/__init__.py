"""The target language model (`qwen3_5` text stack): gated delta nets and gated full attention."""

from dspine_jax.target.model import Target

__all__ = ["Target"]
