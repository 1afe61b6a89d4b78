"""A whole generation of a small pair with every kernel in the interpreter, for one kind of GPU, and with the XLA forms.

A script of its own, since the interpreter runs the threads of a kernel as programs that wait for one another: inside a
large program each needs a thread of XLA's pool, whose size is fixed when jax starts (PJRT_NPROC).
"""

import dataclasses
import json
import sys
from unittest import mock

import dspine_jax
from pallas_kernels.block_attention import api, default_tiles
from pallas_kernels.device import architecture
from tests.kernels.interpreter import gpu, interpreting
from tests.kernels.jax_private import races_found
from tests.kernels.kernel_pair import kernel_pair

PROMPTS = ([5, 9, 2, 450, 7], list(range(40, 110)))


def interpretable_tiles(*args, **kwargs):
    """Those of the attention kernel, with wgmma those of the twin that the interpreter can run."""
    tiles = default_tiles(*args, **kwargs)
    return dataclasses.replace(tiles, accumulate="fresh") if architecture().products == "wgmma" else tiles


def generated(pair, new_tokens: int) -> dict:
    """Tokens and accepted proposals of each request."""
    result = dspine_jax.generate(pair, PROMPTS, max_new_tokens=new_tokens, stop_token_ids=())
    return {
        "tokens": [tokens.tolist() for tokens in result.tokens],
        "accepted": [accepted.tolist() for accepted in result.stats.accepted],
    }


def main() -> None:
    """Prints both as JSON. Arguments: the GPU's name, and how many tokens each request gets."""
    kind, new_tokens = sys.argv[1], int(sys.argv[2])
    pair = kernel_pair()
    xla = generated(pair.with_implementation("xla"), new_tokens)
    with gpu(kind), interpreting(cores=4), mock.patch.object(api, "default_tiles", interpretable_tiles):
        # By name: an operation that could not run as a kernel would raise.
        kernels = generated(pair.with_implementation("mosaic_gpu"), new_tokens)
        races = races_found()
    json.dump({"xla": xla, "kernels": kernels, "races": races}, sys.stdout)


if __name__ == "__main__":
    main()
