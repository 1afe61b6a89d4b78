"""Writing an Orbax checkpoint whose arrays exist one at a time.

Orbax saves a whole tree, so the leaves given to it are promises; a type handler for them, built on Orbax's NumPy
handler, reads each array when its turn comes and waits until it is on disk. The result is an ordinary Orbax
checkpoint of NumPy arrays. Without OCDBT and compression it is plain zarr files, whose bytes depend on nothing but
the values (OCDBT names and packs its files by random ids).
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orbax.checkpoint as ocp

CHUNK_BYTES = 64 * 2**20
"""Upper bound of one file, so that a restore in parts reads no more than it needs."""


@dataclass(frozen=True)
class Promise:
    """An array that is read when it is saved."""

    shape: tuple[int, ...]
    dtype: np.dtype
    read: Callable[[], np.ndarray]


class _PromiseHandler(ocp.type_handlers.NumpyHandler):
    def __init__(self) -> None:
        super().__init__(deepcopy_host_arrays=False)

    async def serialize(
        self,
        values: Sequence[Promise],
        infos: Sequence[ocp.type_handlers.ParamInfo],
        args: Sequence[ocp.SaveArgs] | None = None,
    ) -> Sequence[ocp.future.Future]:
        for value, info, arg in zip(values, infos, args or [ocp.SaveArgs()] * len(values), strict=True):
            for written in await super().serialize([value.read()], [info], [arg]):
                await asyncio.to_thread(written.result)
        return []


def save(path: Path, promises: dict[str, Promise]) -> None:
    """Write the checkpoint `path` with these arrays; returns when all of it is on disk."""
    arguments = ocp.args.PyTreeSave(
        promises, save_args={name: ocp.SaveArgs(chunk_byte_size=CHUNK_BYTES) for name in promises}
    )
    with _quiet_orbax(), ocp.Checkpointer(_handler()) as checkpointer:
        checkpointer.save(path, args=arguments)


def _handler() -> ocp.PyTreeCheckpointHandler:
    registry = ocp.type_handlers.create_type_handler_registry((Promise, _PromiseHandler()))
    return ocp.PyTreeCheckpointHandler(use_ocdbt=False, use_compression=False, type_handler_registry=registry)


@contextmanager
def _quiet_orbax() -> Iterator[None]:
    """Orbax warns that no jax.Array handler is registered and that there is no OCDBT to merge; both are intended."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
