"""Conversion of a pair: preflight, weights tensor by tensor, small files, manifest, rename."""

import shutil
from concurrent.futures import Future
from functools import partial
from pathlib import Path

import numpy as np

from convert.hashing import hashing
from convert.orbax_stream import Promise, save
from convert.progress import Progress
from convert.small_files import check_small_files, copy_small_files
from convert.staging import staged
from dspine_jax import manifest
from dspine_jax.errors import WeightsError
from dspine_jax.hf.pair import PairSource
from dspine_jax.hf.plan import Entry
from dspine_jax.hf.source import Source
from dspine_jax.hf.transforms import read_entry
from dspine_jax.versions import version_of

SPARE_BYTES = 64 * 2**20


def check_destination(pair: PairSource, out: Path, *, overwrite: bool) -> None:
    """Everything about `out` that can be known before writing.

    Raises:
        WeightsError: `out` exists (and may not be replaced), overlaps a source, or the disk is too small.
    """
    real = out.resolve()
    for source in (pair.target, pair.drafter):
        folder = source.model.folder.path.resolve()
        if real.is_relative_to(folder) or folder.is_relative_to(real):
            raise WeightsError(f"--out {out} overlaps the source {folder}; choose a folder apart from both sources")
        check_small_files(folder)
    if out.exists() and not (overwrite and manifest.is_converted(out)):
        hint = "it is no converted folder, so it is never replaced" if overwrite else "choose another, or --overwrite"
        raise WeightsError(f"--out {out} exists; {hint}")
    needed = pair.target.plan.nbytes + pair.drafter.plan.nbytes + SPARE_BYTES
    place = next(parent for parent in real.parents if parent.is_dir())
    free = shutil.disk_usage(place).free
    if free < needed:
        raise WeightsError(f"--out {out} needs {needed / 1e9:.2f} GB, and {place} has {free / 1e9:.2f} GB free")


def convert(pair: PairSource, out: Path, *, overwrite: bool = False) -> None:
    """Write the converted folder `out`. Peak memory: one parameter and a few blocks beside the program
    itself.

    Raises:
        WeightsError: see `check_destination`.
    """
    check_destination(pair, out, overwrite=overwrite)
    out = out.absolute()
    sources = {"target": pair.target, "drafter": pair.drafter}
    total = sum(source.plan.nbytes for source in sources.values())
    files = {model: [file.path for file in source.model.folder.files] for model, source in sources.items()}
    with staged(out, overwrite=overwrite) as stage, hashing(files) as hashes, Progress(total) as progress:
        for model, source in sources.items():
            save(manifest.weights_folder(stage, model), _promises(source, progress))
            copy_small_files(source.model.folder.path, stage / model)
        _manifest(pair, sources, hashes, manifest.files_below(stage)).write(stage)


def _promises(source: Source, progress: Progress) -> dict[str, Promise]:
    def read(entry: Entry) -> np.ndarray:
        array = read_entry(entry, source.model.folder.where)
        progress.advance(entry.nbytes, entry.parameter)
        return array

    return {entry.parameter: Promise(entry.shape, entry.dtype, partial(read, entry)) for entry in source.plan.entries}


def _manifest(
    pair: PairSource, sources: dict[str, Source], hashes: dict[str, Future], files: dict[str, int]
) -> manifest.Manifest:
    return manifest.Manifest(
        dspine_version=version_of("dspine-jax"),
        dtype=pair.dtype,
        configs={model: source.model.config.to_hf() for model, source in sources.items()},
        sources={model: {"files": future.result()} for model, future in hashes.items()},
        parameters={
            model: {entry.parameter: _describe(entry) for entry in source.plan.entries}
            for model, source in sources.items()
        },
        ignored={model: source.plan.ignored for model, source in sources.items()},
        files=files,
    )


def _describe(entry: Entry) -> dict:
    return {
        "shape": list(entry.shape),
        "dtype": str(entry.dtype),
        "tensor": entry.tensor,
        "transform": entry.transform,
    }
