"""Which implementation of an operation runs, and why."""

import functools
import logging
from collections.abc import Sequence
from typing import Literal, get_args

from pallas_kernels.device import gpu_obstacle

Implementation = Literal["xla", "mosaic_gpu", "reference"]

_log = logging.getLogger(__name__)


def resolve(op: str, implementation: Implementation | None, obstacles: Sequence[str]) -> Implementation:
    """The implementation to run. `obstacles` says why this call's arguments cannot go to the Mosaic GPU kernel.

    None chooses the kernel on Hopper and newer GPUs when nothing stands in its way, and XLA otherwise; each distinct
    choice is logged once with its reasons. Raises ValueError for "mosaic_gpu" when it cannot run, and for an unknown
    name.
    """
    if implementation is not None and implementation not in get_args(Implementation):
        raise ValueError(
            f"{op}: implementation is {implementation!r}, wanted one of {get_args(Implementation)} or None"
        )
    if implementation in ("xla", "reference"):
        return implementation
    device = gpu_obstacle()
    reasons = (*obstacles, *([device] if device else []))
    if implementation == "mosaic_gpu" and reasons:
        raise ValueError(f"{op}: the Mosaic GPU kernel cannot run: {'; '.join(reasons)}. Leave `implementation` out.")
    choice: Implementation = "xla" if reasons else "mosaic_gpu"
    # On a machine without such a GPU there is nothing to explain call by call.
    _log_once(op, choice, reasons, logging.DEBUG if device else logging.INFO)
    return choice


@functools.cache
def _log_once(op: str, choice: str, reasons: tuple[str, ...], level: int) -> None:
    _log.log(level, "%s runs as %s%s", op, choice, f": {'; '.join(reasons)}" if reasons else "")
