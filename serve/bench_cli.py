"""`dspine bench`: acceptance by part of the drafter, and speed against plain decoding in the same run."""

import argparse
import contextlib
import dataclasses
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from dspine_jax import Pair, load
from dspine_jax.config import ConfigError
from dspine_jax.errors import WeightsError
from dspine_jax.generate import generate_plain
from dspine_jax.request import Prompt
from dspine_jax.training.corpus import source_files, standard_library
from dspine_jax.training.recipe import BUNDLED, read_recipe
from dspine_jax.versions import versions
from serve import bench_sampling
from serve.bench import Acceptance, Speed, measure_acceptance, measure_speed, prompt_hash
from serve.prompt import read_prompt
from serve.report import device
from serve.sampling_options import METHODS, width
from serve.text import TextError, TextModel


def build_parser() -> argparse.ArgumentParser:
    """Arguments of `dspine bench`."""
    parser = argparse.ArgumentParser(prog="dspine bench", description=__doc__)
    parser.add_argument("model", type=Path, metavar="MODEL_DIR", help="folder that `dspine convert` wrote")
    parser.add_argument(
        "--files",
        nargs="+",
        metavar="FILE",
        help="UTF-8 files, one prompt each (default: the standard library's files that the bundled pair never saw)",
    )
    parser.add_argument("--prompt-tokens", type=int, default=128, help="tokens of each file's start (%(default)s)")
    parser.add_argument("--max-new-tokens", type=int, default=128, help="per prompt (%(default)s)")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8], help="batch sizes to time (%(default)s)")
    parser.add_argument("--repeats", type=int, default=5, help="timed runs of each batch size (%(default)s)")
    sampled = parser.add_argument_group("acceptance of sampled requests, instead of the above")
    sampled.add_argument("--temperatures", type=float, nargs="+", metavar="T", help="one column each; 0 is greedy")
    sampled.add_argument("--widths", type=width, nargs="+", metavar="ROWS", help="verified rows or auto (all)")
    sampled.add_argument("--verification", nargs="+", choices=METHODS, default=METHODS, help="default: both")
    sampled.add_argument("--samples", type=int, default=1, help="seeds of each prompt (%(default)s)")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    return parser


def main(argv: Sequence[str]) -> int:
    """Runs `dspine bench`; 1 when the output is not plain decoding's in float32, or nothing can be measured."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    if arguments.widths and not arguments.temperatures:
        parser.error("--widths belong to --temperatures")
    for name in ("prompt_tokens", "max_new_tokens", "repeats", "samples"):
        if getattr(arguments, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    try:
        pair = load(arguments.model)
        text = TextModel.read(arguments.model / "target")
        prompts = _prompts(text, arguments)
    except (ConfigError, WeightsError, TextError, OSError) as error:
        print(f"dspine bench: error: {error}", file=sys.stderr)
        return 1
    if arguments.temperatures:
        return _sampled(parser, pair, prompts, arguments)
    if any(not 1 <= batch <= len(prompts) for batch in arguments.batches):
        parser.error(f"--batches: wanted 1 to {len(prompts)}, the number of prompts, got {arguments.batches}")

    size = {"max_new_tokens": arguments.max_new_tokens}
    acceptance = measure_acceptance(pair, prompts, generate_plain(pair, prompts, **size), **size)
    speeds = [
        measure_speed(pair, prompts, batch=batch, repeats=arguments.repeats, **size) for batch in arguments.batches
    ]
    facts = _conditions(pair, prompts, arguments)
    if arguments.json:
        rows = {"acceptance": acceptance, "speed": speeds}
        print(json.dumps(facts | {k: [dataclasses.asdict(row) for row in v] for k, v in rows.items()}))
    else:
        print("\n".join(_report(acceptance, speeds, facts)))
    exact = str(pair.dtype) == "float32"
    return 1 if exact and not all(row.same_tokens for row in acceptance) else 0


def _sampled(
    parser: argparse.ArgumentParser, pair: Pair, prompts: Sequence[Prompt], arguments: argparse.Namespace
) -> int:
    widths = arguments.widths or [pair.drafter_config.block_size]
    try:
        bench_sampling.check(pair, widths, arguments.temperatures)
    except ValueError as error:
        parser.error(str(error))
    with jax.default_matmul_precision("highest") if str(pair.dtype) == "float32" else contextlib.nullcontext():
        rows = bench_sampling.measure_sampled(
            pair,
            prompts,
            temperatures=arguments.temperatures,
            widths=widths,
            methods=arguments.verification,
            samples=arguments.samples,
            max_new_tokens=arguments.max_new_tokens,
        )
    facts = _conditions(pair, prompts, arguments) | {"temperature": arguments.temperatures}
    if arguments.json:
        print(json.dumps(facts | {"samples": arguments.samples, "acceptance": bench_sampling.as_json(rows)}))
        return 0
    print(
        f"Tokens per cycle; {facts['prompts']} prompts of {facts['prompt_tokens']} tokens ({facts['prompt_hash']}),"
        f" samples of each: {arguments.samples}, {facts['max_new_tokens']} new tokens, {facts['dtype']} on"
        f" {facts['device']}\n"
    )
    print("\n".join(bench_sampling.table(rows)))
    return 0


def _prompts(text: TextModel, arguments: argparse.Namespace) -> list[list[int]]:
    held_out = read_recipe(BUNDLED)["corpus"]["held_out"]
    files = arguments.files or source_files(standard_library(), held_out)[1]
    prompts = [text.encode(read_prompt(None, str(file)))[: arguments.prompt_tokens] for file in files]
    if short := [str(f) for f, p in zip(files, prompts, strict=True) if len(p) < arguments.prompt_tokens]:
        raise TextError(f"shorter than --prompt-tokens {arguments.prompt_tokens}: {', '.join(short)}")
    return prompts


def _conditions(pair: Pair, prompts: Sequence[Prompt], arguments: argparse.Namespace) -> dict[str, Any]:
    return {
        "model": str(arguments.model),
        "temperature": 0,
        "prompts": len(prompts),
        "prompt_tokens": arguments.prompt_tokens,
        "max_new_tokens": arguments.max_new_tokens,
        "prompt_hash": prompt_hash(prompts),
        "block_size": pair.drafter_config.block_size,
        "retrieval": pair.plan.options.retrieval,
        "dtype": str(pair.dtype),
        "device": device(),
        "versions": versions(),
    }


def _report(acceptance: Sequence[Acceptance], speeds: Sequence[Speed], facts: dict[str, Any]) -> list[str]:
    lines = [
        f"{facts['prompts']} prompts of {facts['prompt_tokens']} tokens ({facts['prompt_hash']}), greedy,"
        f" {facts['max_new_tokens']} new tokens each, {facts['dtype']} on {facts['device']}",
        "",
        f"{'drafter':<22}{'tokens per cycle':>18}   same tokens as plain decoding",
    ]
    for row in acceptance:
        lines.append(f"{row.name:<22}{row.acceptance_length:>18.2f}   {'yes' if row.same_tokens else 'NO'}")
    lines += [
        "",
        f"{'batch':<8}{'speculative':>14}{'plain':>12}   tokens/s; ratio: median (lowest to highest)",
    ]
    for speed in speeds:
        lines.append(
            f"{speed.batch:<8}{speed.speculative:>14.1f}{speed.plain:>12.1f}   "
            f"{statistics.median(speed.ratios):.2f} ({min(speed.ratios):.2f} to {max(speed.ratios):.2f})"
        )
    return lines
