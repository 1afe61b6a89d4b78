"""The manifest of a converted folder: what is in it, what it was made from, and whether it is complete.

Layout of a converted folder (`manifest.json` is written last):

    manifest.json
    target/   drafter/            config.json, tokenizer files: copies of the sources' small files
    weights/target/  weights/drafter/    one Orbax checkpoint each: flat {parameter: array}, plain zarr files
"""

import dataclasses
import json
from pathlib import Path
from typing import Any, Self

from dspine_jax.errors import WeightsError
from dspine_jax.json_file import read_json

FILE = "manifest.json"
FORMAT = "dspine-jax checkpoint"
FORMAT_VERSION = 1
MODELS = ("target", "drafter")
_NOTES = frozenset({"_CHECKPOINT_METADATA", "commit_success.txt"})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """Contents of `manifest.json`, beside the format's name and version.

    configs: model -> config.json mapping (canonical form, in the converted dtype)
    sources: model -> {"files": [{"name", "size", "sha256"}, ...]} of the weight files read
    parameters: model -> parameter -> {"shape", "dtype", "tensor", "transform"}
    ignored: model -> tensor -> reason
    files: path below the folder -> size in bytes, of every weight file written
    """

    dspine_version: str
    dtype: str
    configs: dict[str, dict[str, Any]]
    sources: dict[str, Any]
    parameters: dict[str, dict[str, dict[str, Any]]]
    ignored: dict[str, dict[str, str]]
    files: dict[str, int]

    def write(self, folder: Path) -> None:
        """Write `manifest.json`; afterwards the folder counts as complete."""
        content = {"format": FORMAT, "format_version": FORMAT_VERSION, **dataclasses.asdict(self)}
        (folder / FILE).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the manifest of a complete folder of this version.

        Raises:
            WeightsError: another format or version, or fields missing or unknown.
        """
        path = folder / FILE
        content = read_json(path)
        if content.get("format") != FORMAT:
            raise WeightsError(f"{path}: format is {content.get('format')!r}, wanted {FORMAT!r}")
        if content.get("format_version") != FORMAT_VERSION:
            raise WeightsError(
                f"{path}: format_version is {content.get('format_version')!r}, this program reads "
                f"{FORMAT_VERSION}; convert the sources again"
            )
        names = {field.name: field.type for field in dataclasses.fields(cls)}
        given = content.keys() - {"format", "format_version"}
        if given != names.keys():
            raise WeightsError(
                f"{path}: missing fields {sorted(names.keys() - given)}, unknown fields {sorted(given - names.keys())}"
            )
        for name in names:
            wanted = str if name in ("dspine_version", "dtype") else dict
            if not isinstance(content[name], wanted):
                raise WeightsError(f"{path}: {name} is no {wanted.__name__}; the file is damaged")
        return cls(**{name: content[name] for name in names})


def is_converted(folder: Path) -> bool:
    """Whether `folder` is a finished converted folder, of any version."""
    return (folder / FILE).is_file() and read_json(folder / FILE).get("format") == FORMAT


def incomplete_sibling(folder: Path) -> Path:
    """Where a conversion into `folder` writes until it is complete."""
    return folder.parent / f"{folder.name}.incomplete"


def weights_folder(folder: Path, model: str) -> Path:
    return folder / "weights" / model


def files_below(folder: Path) -> dict[str, int]:
    """Every weight file of a converted folder: path below the folder -> size, in path order.

    Orbax's notes on when and where it wrote are left out: they differ between equal checkpoints.
    """
    paths = sorted(path for path in (folder / "weights").rglob("*") if path.is_file() and path.name not in _NOTES)
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in paths}
