"""The targets that are compared with transformers, and what is recorded of each."""

import dataclasses
from typing import Any

import numpy as np

from dspine_jax.config import TargetConfig
from tests.tiny import tiny_plain_config, tiny_target_config

ROWS = 160  # tokens of the longest run
PREFIXES = (1, 2, 3, 63, 64, 65, 130)  # the states after so many tokens are recorded
SLOTS = 2
PROMPT, BLOCK = 20, 16  # the block runs start with a prompt; their states at the end are recorded too
ACCEPTED = tuple(range(BLOCK + 1))  # every number of accepted rows once
END = PROMPT + sum(ACCEPTED)
GOLDEN_ROWS = (0, 1, 2, 15, 16, 17, 20, 21, 29, 62, 63, 64, 65, 96, 128, 129, 155, 159)


@dataclasses.dataclass(frozen=True)
class Case:
    """A configuration with the rope sections that its checkpoint would name, if any."""

    name: str
    config: TargetConfig
    mrope_section: tuple[int, int, int] | None
    seed: int
    chunks: tuple[int, ...]
    prefixes: tuple[int, ...] = (*PREFIXES, END)

    @property
    def hf_config(self) -> dict[str, Any]:
        """The `config.json` mapping, with interleaved rope sections as multimodal checkpoints have them."""
        config = self.config.to_hf()
        if self.mrope_section is None:
            return config
        rope = config["rope_parameters"] | {
            "mrope_section": list(self.mrope_section),
            "mrope_interleaved": True,
        }
        return config | {"rope_parameters": rope}

    @property
    def ids(self) -> np.ndarray:
        """[SLOTS, ROWS] token ids."""
        return np.random.default_rng(self.seed).integers(0, self.config.vocab_size, (SLOTS, ROWS))


def _schedule(layers: int, interval: int) -> tuple[str, ...]:
    return tuple("linear_attention" if (i + 1) % interval else "full_attention" for i in range(layers))


# The case with every chunk length: no more layers than two kinds need.
PLAIN = Case(
    name="plain",
    config=tiny_target_config(
        num_hidden_layers=3, layer_types=("linear_attention", "full_attention", "linear_attention")
    ),
    mrope_section=(2, 1, 1),
    seed=1,
    chunks=(1, 2, 3, 16, 63, 64, 65, ROWS),
)

# Odd head counts, tied embeddings, a full-attention layer every second one, a narrower convolution.
ODD = Case(
    name="odd",
    config=tiny_target_config(
        layer_types=_schedule(4, 2),
        num_attention_heads=5,
        num_key_value_heads=1,
        head_dim=24,
        partial_rotary_factor=0.25,
        linear_num_key_heads=3,
        linear_num_value_heads=9,
        linear_conv_kernel_dim=3,
        tie_word_embeddings=True,
    ),
    mrope_section=(1, 1, 1),
    seed=2,
    chunks=(64,),
    prefixes=(1, 65, END),
)

# Keys wider than values, one key head, every head rotated whole, a gated delta net as the last layer.
WIDE_KEYS = Case(
    name="wide_keys",
    config=tiny_target_config(
        num_hidden_layers=5,
        layer_types=_schedule(5, 3),
        partial_rotary_factor=1.0,
        linear_num_key_heads=1,
        linear_num_value_heads=4,
        linear_key_head_dim=20,
        linear_value_head_dim=6,
        rms_norm_eps=1e-5,
    ),
    mrope_section=(4, 2, 2),
    seed=3,
    chunks=(65,),
    prefixes=(2, 64, END),
)

BFLOAT16 = Case(
    name="bfloat16",
    config=tiny_target_config(dtype="bfloat16"),
    mrope_section=(2, 1, 1),
    seed=1,
    chunks=(64,),
    prefixes=(130, END),
)

# A plain `qwen3` model.
DENSE = Case(name="dense", config=tiny_plain_config(), mrope_section=None, seed=4, chunks=(64,), prefixes=(END,))

CASES = (PLAIN, ODD, WIDE_KEYS, BFLOAT16, DENSE)
