"""`dspine generate`: one prompt continued as text, on the screen as it is accepted."""

import argparse
import contextlib
import dataclasses
import io
import json
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp

from dspine_jax import DraftOptions, Pair, load, load_hf
from dspine_jax.config import ConfigError
from dspine_jax.errors import WeightsError
from dspine_jax.measure import measure_widths
from dspine_jax.request import check_requests
from dspine_jax.sampling import SamplingParams
from dspine_jax.sampling.width import check_width
from dspine_jax.versions import versions
from serve import report
from serve.comparison import first_difference
from serve.completion import Request, complete, warm_up
from serve.prompt import read_prompt
from serve.sampling_options import add_sampling, add_verification, params_of, positive
from serve.text import TextError, TextModel

DTYPES = ("bfloat16", "float32")

DESCRIPTION = """\
Continue a prompt by speculative decoding, greedily or sampled. The text goes to standard output as it is accepted,
everything else to standard error. The prompt is continued as it stands: no chat template is applied.
"""

EPILOG = """\
exit status: 0 done; 1 the model or the prompt cannot be used, or --compare-plain found different tokens in
float32; 2 wrong usage; 130 interrupted

example: dspine generate MODEL_DIR --prompt-file start.py --stats --compare-plain
"""


def build_parser() -> argparse.ArgumentParser:
    """Arguments of `dspine generate`."""
    parser = argparse.ArgumentParser(
        prog="dspine generate",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="%(prog)s (MODEL_DIR | --target DIR --draft DIR) (PROMPT | - | --prompt-file FILE) [OPTIONS]",
    )
    what = parser.add_argument_group("model and prompt")
    what.add_argument("places", nargs="*", metavar="MODEL_DIR PROMPT", help="converted folder; text, or - for stdin")
    what.add_argument("--target", type=Path, metavar="DIR", help="Hugging Face folder, used without conversion")
    what.add_argument("--draft", type=Path, metavar="DIR", help="Hugging Face folder of its drafter")
    what.add_argument("--prompt-file", metavar="FILE", help="UTF-8 file that holds the prompt; - for stdin")

    run = parser.add_argument_group("generation")
    run.add_argument("--max-new-tokens", type=positive, default=256, metavar="N", help="default: %(default)s")
    run.add_argument(
        "--stop",
        action="append",
        default=[],
        metavar="TEXT",
        help="end before this text; repeatable, the one complete first wins",
    )
    run.add_argument("--ignore-eos", action="store_true", help="do not end at the model's end-of-text tokens")
    run.add_argument("--dtype", choices=DTYPES, help="of weights and caches (default: the converted folder's own)")

    add_sampling(parser)

    draft = parser.add_argument_group("drafting (changes the speed, never the text, nor the law of a sampled one)")
    defaults = DraftOptions()
    draft.add_argument(
        "--retrieval",
        choices=("fp8", "direct"),
        default=defaults.retrieval,
        help="find candidates in two passes, the first in float8, or in one (default: %(default)s)",
    )
    draft.add_argument(
        "--tail",
        choices=("direct", "table", "off"),
        default=defaults.tail,
        help="form of the last refinement; off is for comparison (default: %(default)s)",
    )
    draft.add_argument("--no-bridge", action="store_true", help="no messages between rows, for comparison")

    add_verification(draft)

    output = parser.add_argument_group("output")
    output.add_argument("--no-stream", action="store_true", help="print the text once it is complete")
    output.add_argument(
        "--stats", action="store_true", help="acceptance and speed on standard error; runs a warm-up first"
    )
    plain = output.add_mutually_exclusive_group()
    plain.add_argument("--plain", action="store_true", help="decode one token at a time, without the drafter")
    plain.add_argument(
        "--compare-plain",
        action="store_true",
        help="decode plainly as well; tell whether both gave the same tokens",
    )
    output.add_argument("--json", action="store_true", help="one JSON object instead of the text")
    output.add_argument(
        "--logprobs",
        type=int,
        metavar="N",
        help="with --json: the target's log-probability of each token and of the N best, before any filter",
    )
    return parser


def main(argv: Sequence[str]) -> int:
    """Runs `dspine generate`; the exit status."""
    parser = build_parser()
    arguments = parser.parse_intermixed_args(argv)
    folder, argument = _places(parser, arguments)
    try:
        options = DraftOptions(retrieval=arguments.retrieval, tail=arguments.tail, bridge=not arguments.no_bridge)
        sampling = params_of(arguments, logprobs=arguments.logprobs)
    except ValueError as error:
        parser.error(str(error))
    _check_together(parser, arguments, sampling)
    try:
        prompt = read_prompt(argument, arguments.prompt_file)
        pair, text = _open(folder, arguments, options)
        request = _request(pair, text, prompt, sampling, arguments)
    except (TextError, ConfigError, WeightsError) as error:
        print(f"dspine generate: error: {error}", file=sys.stderr)
        return 1
    # In float32 both ways of decoding must agree, which the reduced products of some devices would spoil.
    exact = is_exact(pair)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without UTF-8 shows what it can
    with jax.default_matmul_precision("highest") if exact else contextlib.nullcontext():
        result = _run(pair, text, request, arguments)
    if arguments.json:
        model = {"folder": str(folder)} if folder else {k: str(getattr(arguments, k)) for k in ("target", "draft")}
        print(json.dumps(report.as_json(result, pair, model, versions())))
    return 1 if exact and result.difference else 0


def is_exact(pair: Pair) -> bool:
    """Whether a difference from plain decoding is a fault, and not a near tie that fell the other way."""
    return pair.dtype == jnp.float32


def _check_together(parser: argparse.ArgumentParser, arguments: argparse.Namespace, sampling: SamplingParams) -> None:
    if sampling.sampled and arguments.compare_plain:
        parser.error(
            "--compare-plain compares tokens, which are equal only at temperature 0: sampled tokens of both ways have"
            " one law but are other draws"
        )
    if arguments.logprobs is not None and not arguments.json:
        parser.error("--logprobs are part of the JSON object: add --json")
    if arguments.plain and (arguments.verify_width is not None or arguments.verification != "token"):
        parser.error("--plain verifies nothing: leave --verification and --verify-width out")
    needs_law = sampling.sampled or sampling.processed or arguments.verify_width == "auto"
    if arguments.tail == "table" and needs_law and not arguments.plain:
        parser.error("--tail table knows no probabilities; sampling, penalties and --verify-width auto need them")


def _places(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> tuple[Path | None, str | None]:
    """The converted folder, unless two others are named, and the prompt, unless it is in a file."""
    raw = (arguments.target is not None) + (arguments.draft is not None)
    if raw == 1:
        parser.error("--target and --draft belong together")
    places = list(arguments.places)
    if not raw and not places:
        parser.error("no model: give a converted folder, or --target and --draft")
    folder = None if raw else Path(places.pop(0))
    wanted = 0 if arguments.prompt_file is not None else 1
    if len(places) < wanted:
        parser.error("no prompt: give it as an argument, with --prompt-file, or - for standard input")
    if len(places) > wanted:
        hint = "quote a prompt with spaces" if wanted else "--prompt-file is the prompt"
        parser.error(f"got {places[wanted]!r} as well; {hint}")
    return folder, places[0] if places else None


def _open(folder: Path | None, arguments: argparse.Namespace, options: DraftOptions) -> tuple[Pair, TextModel]:
    tokens = folder / "target" if folder else arguments.target
    if tokens.is_dir():
        # Faults of the tokenizer and of stop strings are told before the weights are read.
        TextModel.read(tokens).check_stop_strings(arguments.stop)
    if folder:
        pair = load(folder, dtype=arguments.dtype, options=options)
    else:
        with warnings.catch_warnings(record=True) as caught:
            pair = load_hf(target=arguments.target, draft=arguments.draft, dtype=arguments.dtype, options=options)
        for warning in caught:
            print(f"dspine generate: warning: {warning.message}", file=sys.stderr)
    return pair, TextModel.read(tokens)


def _request(
    pair: Pair, text: TextModel, prompt: str, sampling: SamplingParams, arguments: argparse.Namespace
) -> Request:
    config = pair.target_config
    size = text.tokenizer.get_vocab_size()
    if size > config.vocab_size:
        raise TextError(
            f"the tokenizer has {size} tokens, the target only {config.vocab_size};"
            " give the target its own tokenizer.json"
        )
    stops = () if arguments.ignore_eos else tuple(dict.fromkeys(config.eos_token_ids + text.eos_token_ids))
    ids = text.encode(prompt)
    try:
        check_requests(config, [ids], arguments.max_new_tokens, stops, [sampling])
        if isinstance(arguments.verify_width, int):
            check_width(arguments.verify_width, pair.drafter_config.block_size)
    except ValueError as error:
        raise TextError(str(error)) from None
    return Request(
        ids,
        arguments.max_new_tokens,
        stops,
        tuple(arguments.stop),
        sampling,
        arguments.verification,
        arguments.verify_width,
    )


def _run(pair: Pair, text: TextModel, request: Request, arguments: argparse.Namespace) -> report.Result:
    speculative, compare = not arguments.plain, arguments.compare_plain
    if arguments.verify_width == "auto":
        costs = measure_widths(
            pair,
            context=len(request.prompt) + request.max_new_tokens,
            temperature=request.sampling.temperature,
            verification=arguments.verification,
        )
        request = dataclasses.replace(request, width_costs=costs)
    if arguments.stats:
        print("warming up: every program is compiled before anything is measured", file=sys.stderr)
        for mode in [speculative] + [False] * compare:
            warm_up(pair, request, speculative=mode)
    stream = not (arguments.json or arguments.no_stream)
    done = complete(pair, text, request, speculative=speculative, show=_show if stream else _ignore)
    if arguments.no_stream and not arguments.json:
        _show(done.text)
    if sys.stdout.isatty() and not arguments.json:
        _show("\n")  # the shell's prompt should not stand behind the text; a file gets the text alone
    plain = complete(pair, text, request, speculative=False) if compare else None
    difference = first_difference(pair, request, done.token_ids, plain.token_ids) if plain else None
    result = report.Result(
        prompt_tokens=len(request.prompt),
        main=done,
        speculative=speculative,
        warmed_up=arguments.stats,
        plain=plain,
        difference=difference,
    )
    lines = list(report.statistics(result, pair)) if arguments.stats else []
    if compare:
        lines.append(report.comparison(result))
    if lines:
        print("", *lines, sep="\n", file=sys.stderr)
    return result


def _show(piece: str) -> None:
    sys.stdout.write(piece)
    sys.stdout.flush()


def _ignore(piece: str) -> None:
    pass
