"""Command-line options that conversion and inspection share."""

import argparse

from dspine_jax.hf.source import DTYPES


def add_dtype(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dtype",
        choices=DTYPES,
        help="dtype of the weights (default: what the target's config declares; a drafter follows it); "
        "A_log, dt_bias and the gated norm stay float32",
    )


def add_map(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--map",
        action="append",
        default=[],
        metavar="PARAMETER=TENSOR",
        dest="overrides",
        help="fill a parameter from a named tensor, against every rule; repeatable; "
        "PARAMETER may start with target: or drafter:",
    )
