"""`dspine convert`: a Hugging Face target and drafter become one folder that loads without conversion."""

import argparse
import sys
from pathlib import Path

from convert.conversion import convert
from convert.options import add_dtype, add_map
from dspine_jax.config import ConfigError
from dspine_jax.errors import WeightsError
from dspine_jax.hf import open_pair

SUMMARY = "convert a Hugging Face target and drafter into one Orbax folder"


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="dspine convert", description=SUMMARY)
    parser.add_argument("--target", type=Path, required=True, metavar="DIR", help="folder of the target")
    parser.add_argument("--draft", type=Path, required=True, metavar="DIR", help="folder of the drafter")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to make; appears when complete")
    add_dtype(parser)
    add_map(parser)
    parser.add_argument("--overwrite", action="store_true", help="replace OUT if it is a converted folder")
    return parser


def main(argv: list[str]) -> int:
    """Run `dspine convert` with these arguments; the exit status."""
    options = parser().parse_args(argv)
    try:
        pair = open_pair(options.target, options.draft, dtype=options.dtype, overrides=options.overrides)
        for warning in pair.warnings:
            print(f"dspine convert: warning: {warning}", file=sys.stderr)
        convert(pair, options.out, overwrite=options.overwrite)
    except (ConfigError, WeightsError, OSError) as error:
        print(f"dspine convert: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"dspine convert: interrupted; {options.out} was not written", file=sys.stderr)
        return 130
    for source in (pair.target, pair.drafter):
        plan, files = source.plan, len(source.model.folder.files)
        print(
            f"{plan.model}: {len(plan.entries)} of {len(source.model.parameters)} parameters filled, "
            f"{len(plan.ignored)} tensors ignored, from {files} file{'s' if files != 1 else ''} "
            f"({plan.nbytes / 1e9:.3f} GB as {pair.dtype})"
        )
    print(f"wrote {options.out}")
    return 0
