"""A folder that appears complete or not at all."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dspine_jax.errors import WeightsError
from dspine_jax.manifest import incomplete_sibling, is_converted

_LOCK = ".lock"


@contextmanager
def staged(out: Path, *, overwrite: bool) -> Iterator[Path]:
    """Yield an empty sibling folder to write into; it becomes `out` when the block ends without an error.

    An error or Ctrl-C removes it. What a killed run left behind is removed by the next one, which a lock
    tells from a run that is still at work.

    Raises:
        WeightsError: another run writes to the same place.
    """
    stage = incomplete_sibling(out)
    stage.mkdir(parents=True, exist_ok=True)
    with open(stage / _LOCK, "wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise WeightsError(
                f"{stage}: another conversion is writing there; wait for it or choose another --out"
            ) from error
        try:
            _clear(stage)
            yield stage
            (stage / _LOCK).unlink()
            _publish(stage, out, overwrite=overwrite)
        except BaseException:
            shutil.rmtree(stage, ignore_errors=True)
            raise


def _clear(stage: Path) -> None:
    for item in stage.iterdir():
        if item.is_dir() and not item.is_symlink():
            shutil.rmtree(item)
        elif item.name != _LOCK:
            item.unlink()


def _publish(stage: Path, out: Path, *, overwrite: bool) -> None:
    """Renaming onto a folder succeeds only where that folder is empty, so nothing else is replaced."""
    if not (overwrite and is_converted(out)):
        os.rename(stage, out)
        return
    old = out.parent / f"{out.name}.replaced"
    if is_converted(old):
        shutil.rmtree(old)
    os.rename(out, old)
    try:
        os.rename(stage, out)
    except OSError:
        os.rename(old, out)
        raise
    shutil.rmtree(old)
