"""Time of one call on the device, without the host's share and without the cache's help."""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax

ROUNDS = 12
WARM_UP = 2


def seconds_per_call(function: Callable, arguments: Sequence[tuple], *, in_place: Callable | None = None) -> float:
    """Median over rounds of one compiled program that calls `function` on each of `arguments` in turn.

    The arguments together should be larger than the device's cache, so that each call finds it cold; many calls in
    one program share one launch from the host. With `in_place`, the first argument of each call is donated, and
    in_place(arguments, result) gives the arguments of the next round.
    """

    def every(first: list, rest: list) -> list:
        return [function(one, *others) for one, others in zip(first, rest, strict=True)]

    compiled = jax.jit(every, donate_argnums=0 if in_place else ())
    first, rest = [a[0] for a in arguments], [a[1:] for a in arguments]
    measured = []
    for _ in range(WARM_UP + ROUNDS):
        start = time.perf_counter()
        results = jax.block_until_ready(compiled(first, rest))
        measured.append((time.perf_counter() - start) / len(arguments))
        if in_place:
            first = [in_place(result) for result in results]
    return statistics.median(measured[WARM_UP:])


def sets_to_exceed(cache_bytes: int, bytes_moved: int, most: int = 24) -> int:
    """How many argument sets make the cache useless: together twice its size, at least two."""
    return max(2, min(most, -(-2 * cache_bytes // bytes_moved)))


def random_like(shapes: Any, seed: int) -> Any:
    """Normal values for floats, scaled so that products over the last axis stay near one; zeros for integers."""
    leaves, tree = jax.tree.flatten(shapes)
    keys = jax.random.split(jax.random.key(seed), len(leaves))

    def draw(key, leaf):
        if not jax.numpy.issubdtype(leaf.dtype, jax.numpy.floating):
            return jax.numpy.zeros(leaf.shape, leaf.dtype)
        scale = leaf.shape[-1] ** -0.5 if len(leaf.shape) > 1 else 1.0
        return (scale * jax.random.normal(key, leaf.shape)).astype(leaf.dtype)

    return jax.tree.unflatten(tree, [draw(key, leaf) for key, leaf in zip(keys, leaves, strict=True)])
