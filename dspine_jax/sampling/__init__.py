"""Sampled requests whose output has exactly the target's own law, and per-token processors.

`params` says what a request may ask for; `state` is its form on the device; `filters` and `processors` make the law
of one row from logits; `draws` is all randomness; `draft` draws proposals and `verify` accepts them; `width` decides
how many rows a cycle verifies; `logprobs` records what the target thought of the emitted tokens.
"""

from dspine_jax.sampling.params import SamplingFields, SamplingParams
from dspine_jax.sampling.state import Sampling
from dspine_jax.sampling.width import Verification, WidthCosts

__all__ = ["Sampling", "SamplingFields", "SamplingParams", "Verification", "WidthCosts"]
