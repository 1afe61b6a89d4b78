"""Writing an Orbax checkpoint whose arrays exist one at a time.

Orbax saves a whole tree, so the leaves given to it are promises; the type handler for them, built on Orbax's
NumPy handler, reads each array when its turn comes and waits until it is on disk. The result is an ordinary
Orbax checkpoint of NumPy arrays. Without OCDBT and compression it is plain zarr files, whose bytes depend
on nothing but the values (OCDBT names and packs its files by random ids).
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint.future import Future

CHUNK_BYTES = 64 * 2**20
"""Upper bound of one file, so that a restore in parts reads no more than it needs."""


@dataclass(frozen=True)
class Promise:
    """An array that is read when it is saved."""

    shape: tuple[int, ...]
    dtype: np.dtype
    read: Callable[[], np.ndarray]


class _PromiseHandler(ocp.type_handlers.TypeHandler):
    """Saves promises as the NumPy arrays that they stand for."""

    def __init__(self) -> None:
        self._arrays = ocp.type_handlers.NumpyHandler(deepcopy_host_arrays=False)

    def typestr(self) -> str:
        return self._arrays.typestr()

    async def metadata(self, infos: Sequence[ocp.type_handlers.ParamInfo]) -> Sequence[Any]:
        return await self._arrays.metadata(infos)

    async def serialize(
        self,
        values: Sequence[Promise],
        infos: Sequence[ocp.type_handlers.ParamInfo],
        args: Sequence[ocp.SaveArgs] | None = None,
    ) -> Sequence[Future]:
        for value, info, arg in zip(values, infos, args or [ocp.SaveArgs()] * len(values), strict=True):
            for written in await self._arrays.serialize([value.read()], [info], [arg]):
                await asyncio.to_thread(written.result)
        return []

    async def deserialize(
        self,
        infos: Sequence[ocp.type_handlers.ParamInfo],
        args: Sequence[ocp.RestoreArgs] | None = None,
    ) -> Sequence[np.ndarray]:
        return await self._arrays.deserialize(infos, args)


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
    """Orbax warns of no jax.Array handler and of no OCDBT files to merge; both are intended."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
