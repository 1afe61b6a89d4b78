"""A whole generation of a small pair with every kernel in the interpreter, and with the XLA forms.

A script of its own, since the interpreter runs the threads of a kernel as programs that wait for one another: inside a
large program each needs a thread of XLA's pool, whose size is fixed when jax starts (PJRT_NPROC).
"""

import dataclasses
import json
import sys
from unittest import mock

import dspine_jax
from pallas_kernels.block_attention import api, default_tiles
from tests.kernels.interpreter import interpreting
from tests.kernels.jax_private import races_found
from tests.kernels.kernel_pair import kernel_pair

PROMPTS = ([5, 9, 2, 450, 7], list(range(40, 110)))
NEW_TOKENS = 8


def interpretable_tiles(*args, **kwargs):
    """The twin of the attention kernel that the interpreter can run."""
    return dataclasses.replace(default_tiles(*args, **kwargs), accumulate="fresh")


def generated(pair) -> dict:
    """Tokens and accepted proposals of each request."""
    result = dspine_jax.generate(pair, PROMPTS, max_new_tokens=NEW_TOKENS, stop_token_ids=())
    return {
        "tokens": [tokens.tolist() for tokens in result.tokens],
        "accepted": [accepted.tolist() for accepted in result.stats.accepted],
    }


def main() -> None:
    """Prints both as JSON."""
    pair = kernel_pair()
    xla = generated(pair.with_implementation("xla"))
    with interpreting(cores=4), mock.patch.object(api, "default_tiles", interpretable_tiles):
        # By name: an operation that could not run as a kernel would raise.
        kernels = generated(pair.with_implementation("mosaic_gpu"))
        races = races_found()
    json.dump({"xla": xla, "kernels": kernels, "races": races}, sys.stdout)


if __name__ == "__main__":
    main()
