"""The arguments of `dspine bench`, and which of them go together."""

import argparse
from pathlib import Path

from dspine_jax import DraftOptions
from serve.benchmark.acceptance import ABLATIONS
from serve.benchmark.subject import PRESETS
from serve.sampling_options import METHODS, add_sampling, params_of, width

PARTS = ("acceptance", "speed", "stages", "cancellation")  # by default
ONE_DISPATCH = "one-dispatch"  # speed, also with all cycles in one program

EPILOG = """\
`dspine bench compare A.json B.json` sets two reports side by side, if they are comparable.

exit status: 0 measured; 1 the pair or the prompts cannot be used, or in float32 the output is not plain decoding's;
2 wrong usage, or reports that are not comparable
"""


def build_parser() -> argparse.ArgumentParser:
    """Arguments of `dspine bench`."""
    parser = argparse.ArgumentParser(
        prog="dspine bench",
        description="Measure plain and speculative decoding side by side, on the same prompts, in one run.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = parser.add_argument_group("pair and prompts")
    what.add_argument("model", type=Path, nargs="?", metavar="MODEL_DIR", help="folder that `dspine convert` wrote")
    what.add_argument(
        "--random-weights", choices=tuple(PRESETS), metavar="PRESET", help=f"instead: sizes of {', '.join(PRESETS)}"
    )
    what.add_argument("--dtype", choices=("bfloat16", "float32"), help="default: the pair's own")
    what.add_argument(
        "--files",
        nargs="+",
        metavar="FILE",
        help="UTF-8 files, one prompt each, raw (default: the standard library's files that the bundled pair never"
        " saw; random tokens for random weights)",
    )
    what.add_argument("--prompt-tokens", type=int, default=128, metavar="N", help="of each file's start (%(default)s)")
    what.add_argument("--max-new-tokens", type=int, default=128, metavar="N", help="of each prompt (%(default)s)")

    how = parser.add_argument_group("measurement")
    how.add_argument(
        "--concurrency",
        type=int,
        nargs="+",
        default=[1, 2, 4, 8],
        metavar="N",
        help="requests at a time; each must divide the greatest, which is the number of timed prompts (1 2 4 8)",
    )
    how.add_argument("--repeats", type=int, default=3, metavar="N", help="of every timing (%(default)s)")
    how.add_argument(
        "--parts",
        nargs="+",
        choices=(*PARTS, ONE_DISPATCH),
        default=PARTS,
        metavar="PART",
        help=f"{', '.join(PARTS)} (all by default) and {ONE_DISPATCH}: speed also with all cycles in one program",
    )
    how.add_argument(
        "--ablate",
        type=_ablations,
        default=(),
        metavar="LIST",
        help=f"acceptance with mechanisms switched off as well: {','.join(ABLATIONS)}, or some of them",
    )
    how.add_argument(
        "--force-acceptance",
        metavar="MEAN|FILE",
        help="accept as many proposals as a distribution says: tokens per cycle, or a JSON histogram. The text is then"
        " not the model's; every figure is marked FORCED",
    )
    how.add_argument(
        "--skip-prefill",
        action="store_true",
        help="with --force-acceptance: read only the end of each prompt, the rest of the context stays zero",
    )
    how.add_argument("--roof-gbps", type=float, metavar="X", help="memory bandwidth (default: of known GPUs)")
    how.add_argument("--peers", action="store_true", help="time transformers' generate on the same weights, on the CPU")
    how.add_argument(
        "--peers-python",
        type=Path,
        default=Path(".venv-peers/bin/python"),
        metavar="PATH",
        help="interpreter that has the packages of the extra `peers` (%(default)s)",
    )

    add_sampling(parser)
    draft = parser.add_argument_group("drafting and verifying")
    defaults = DraftOptions()
    draft.add_argument("--retrieval", choices=("fp8", "direct"), default=defaults.retrieval, help="(%(default)s)")
    draft.add_argument("--tail", choices=("direct", "table"), default=defaults.tail, help="(%(default)s)")
    draft.add_argument("--verification", nargs="+", choices=METHODS, help="one, or several with --temperatures (token)")
    draft.add_argument("--verify-width", type=width, metavar="ROWS", help="rows of a block, or auto (all)")

    sampled = parser.add_argument_group("acceptance of sampled requests by temperature, instead of all the above")
    sampled.add_argument("--temperatures", type=float, nargs="+", metavar="T", help="one column each; 0 is greedy")
    sampled.add_argument("--widths", type=width, nargs="+", metavar="ROWS", help="verified rows or auto (all)")
    sampled.add_argument("--samples", type=int, default=1, metavar="N", help="seeds of each prompt (%(default)s)")

    output = parser.add_argument_group("output")
    output.add_argument(
        "--json", nargs="?", const="-", metavar="FILE", help="everything measured; alone: instead of the table"
    )
    output.add_argument("--markdown", action="store_true", help="the table in Markdown")
    output.add_argument("--plots", type=Path, metavar="DIR", help="PNG files; needs the extra `plot`")
    return parser


def check(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """Ends with a message for arguments that do not go together."""
    for name in ("prompt_tokens", "max_new_tokens", "repeats", "samples"):
        if getattr(arguments, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    if (arguments.model is None) == (arguments.random_weights is None):
        parser.error("wanted a MODEL_DIR or --random-weights, one of them")
    if arguments.random_weights and arguments.files:
        parser.error("--random-weights has no tokenizer: leave --files out")
    if arguments.temperatures:
        return
    if arguments.widths:
        parser.error("--widths belong to --temperatures")
    if arguments.verification and len(arguments.verification) > 1:
        parser.error("several --verification belong to --temperatures; here only one")
    greatest = max(arguments.concurrency)
    if min(arguments.concurrency) < 1 or any(greatest % size for size in arguments.concurrency):
        parser.error(f"--concurrency: wanted numbers that divide the greatest, got {arguments.concurrency}")
    if arguments.max_new_tokens < 2 and arguments.parts != ["acceptance"]:
        parser.error("--max-new-tokens must be at least 2: the first token is in no cycle")
    if arguments.roof_gbps is not None and arguments.roof_gbps <= 0:
        parser.error("--roof-gbps must be positive")
    _check_forced(parser, arguments)
    _check_sampling(parser, arguments)


def _check_forced(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    if arguments.force_acceptance is None:
        if arguments.skip_prefill:
            parser.error("--skip-prefill changes what is emitted: it needs --force-acceptance")
        return
    if arguments.ablate:
        parser.error("--force-acceptance gives the acceptance that --ablate would measure: leave one out")
    if arguments.peers:
        parser.error("--force-acceptance emits other tokens than the model's: leave --peers out")


def _check_sampling(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    try:
        sampling = params_of(arguments)
    except ValueError as error:
        parser.error(str(error))
    needs_law = sampling.sampled or sampling.processed or arguments.verify_width == "auto"
    if arguments.tail == "table" and needs_law:
        parser.error("--tail table knows no probabilities; sampling, penalties and --verify-width auto need them")
    if arguments.peers and (sampling.sampled or sampling.processed):
        parser.error("--peers are compared with greedy decoding only: leave the sampling options out")


def _ablations(value: str) -> tuple[str, ...]:
    names = tuple(value.split(","))
    if unknown := [name for name in names if name not in ABLATIONS]:
        raise argparse.ArgumentTypeError(f"wanted {','.join(ABLATIONS)} or some of them, got {','.join(unknown)!r}")
    return names
