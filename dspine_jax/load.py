"""Pairs from folders: converted ones, and Hugging Face ones without conversion."""

from collections.abc import Iterable
from pathlib import Path

import jax
import jax.numpy as jnp

from dspine_jax.drafter.propose import DraftOptions
from dspine_jax.pair import Pair, build_pair

# The readers are imported where they are used: Orbax alone takes as long to import as all the rest.


def load(folder: str | Path, *, dtype: jax.typing.DTypeLike | None = None, options: DraftOptions | None = None) -> Pair:
    """The pair in a folder that `dspine convert` wrote, on the first device.

    `dtype` is bfloat16 or float32, by default what the folder was converted to; float32 from bfloat16 weights
    is exact, the other way rounds. `options` say how proposals are made (default: `DraftOptions()`).

    Raises WeightsError for a folder that is missing, unconverted, incomplete or damaged, or another dtype.
    """
    from dspine_jax.checkpoint import restore
    from dspine_jax.hf.source import choose_dtype

    wanted = _name(dtype)
    if wanted is not None:
        choose_dtype(wanted, wanted)  # before minutes of reading
    target_config, drafter_config, target, drafter = restore(folder)
    return build_pair(
        target_config,
        drafter_config,
        target,
        drafter,
        dtype=jnp.dtype(choose_dtype(wanted, target_config.dtype)),
        options=options,
    )


def load_hf(
    *,
    target: str | Path,
    draft: str | Path,
    dtype: jax.typing.DTypeLike | None = None,
    options: DraftOptions | None = None,
    map: Iterable[str] = (),
) -> Pair:
    """The pair in two Hugging Face folders, without conversion; all weights pass through memory.

    `dtype` is bfloat16 or float32, by default what the target's config says. Entries of `map`,
    "parameter=tensor.name", override the name tables as `dspine convert --map` does.

    Raises ConfigError for configurations that cannot be run or do not fit together, WeightsError for weights
    that cannot be read or placed; each lists every fault.
    """
    from dspine_jax.hf.pair import read_pair_hf

    target_config, drafter_config, target_flat, drafter_flat = read_pair_hf(
        target=target, draft=draft, dtype=_name(dtype), map=map
    )
    # Placed as a restored checkpoint is: pairs of equal plans then share compiled programs.
    target_flat, drafter_flat = jax.device_put((target_flat, drafter_flat), jax.devices()[0])
    return build_pair(target_config, drafter_config, target_flat, drafter_flat, options=options)


def _name(dtype: jax.typing.DTypeLike | None) -> str | None:
    """The dtype's name; a string stays as it is, so that the error about an unknown one shows it."""
    return dtype if dtype is None or isinstance(dtype, str) else jnp.dtype(dtype).name
