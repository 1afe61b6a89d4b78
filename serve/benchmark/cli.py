"""`dspine bench`: what a pair does and what it costs, beside plain decoding in the same run."""

import argparse
import contextlib
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from dspine_jax import DraftOptions
from dspine_jax.config import ConfigError
from dspine_jax.errors import WeightsError
from dspine_jax.sampling import SamplingParams
from serve.benchmark import comparing, forced, memory, peers, plots, report, roof, sampled, tables
from serve.benchmark.measurement import Bench, measure
from serve.benchmark.options import build_parser, check
from serve.benchmark.subject import Subject, converted, random_weights
from serve.benchmark.workload import Workload, at_random, from_files
from serve.sampling_options import METHODS, params_of
from serve.text import TextError, TextModel


def main(argv: Sequence[str]) -> int:
    """Runs `dspine bench`; the exit status."""
    if list(argv[:1]) == ["compare"]:
        return comparing.main(argv[1:])
    parser = build_parser()
    arguments = parser.parse_args(argv)
    check(parser, arguments)
    try:
        # What is missing is told before minutes of measuring.
        if arguments.plots:
            plots.check()
        if arguments.peers:
            peers.check(arguments.peers_python)
        subject = _subject(arguments)
        workload = _workload(subject, arguments)
    except (ConfigError, WeightsError, TextError, OSError) as error:
        print(f"dspine bench: error: {error}", file=sys.stderr)
        return 1
    except ValueError as error:
        parser.error(str(error))
    exact = str(subject.pair.dtype) == "float32"
    # In float32 both ways must agree, which the reduced products of some devices would spoil.
    with jax.default_matmul_precision("highest") if exact else contextlib.nullcontext():
        if arguments.temperatures:
            return _sampled(parser, subject, workload, arguments)
        return _run(parser, subject, workload, arguments, exact=exact)


def _run(
    parser: argparse.ArgumentParser,
    subject: Subject,
    workload: Workload,
    arguments: argparse.Namespace,
    *,
    exact: bool,
) -> int:
    try:
        shares = None
        if arguments.force_acceptance is not None:
            shares = forced.read_shares(arguments.force_acceptance, subject.pair.drafter_config.block_size)
        bench = Bench.of(subject, workload, arguments, shares)
        bench.batches(max(bench.concurrency), everything=True)
    except ValueError as error:
        parser.error(str(error))
    found = report.conditions(bench) | measure(
        bench, arguments.parts, arguments.ablate, roof.find_roof(arguments.roof_gbps), _tell
    )
    found["memory"] = dataclasses.asdict(memory.peak())
    found["peers"] = None
    if arguments.peers:
        _tell("transformers on the same weights")
        found["peers"] = peers.measure(bench, arguments.peers_python)
    _write(found, arguments)
    wrong = [row for row in found["acceptance"] if row["same_tokens"] is False]
    return 1 if exact and wrong else 0


def _write(found: dict[str, Any], arguments: argparse.Namespace) -> None:
    if arguments.plots:
        for path in plots.write(found, arguments.plots):
            _tell(f"wrote {path}")
    if arguments.json and arguments.json != "-":
        Path(arguments.json).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if arguments.json == "-":
        print(json.dumps(found))
    else:
        render = tables.markdown if arguments.markdown else tables.text
        print("\n".join(render(found)))


def _sampled(
    parser: argparse.ArgumentParser, subject: Subject, workload: Workload, arguments: argparse.Namespace
) -> int:
    pair = subject.pair
    widths = arguments.widths or [pair.drafter_config.block_size]
    try:
        sampled.check(pair, widths, arguments.temperatures)
    except ValueError as error:
        parser.error(str(error))
    rows = sampled.measure_sampled(
        pair,
        workload.prompts,
        temperatures=arguments.temperatures,
        widths=widths,
        methods=arguments.verification or METHODS,
        samples=arguments.samples,
        max_new_tokens=arguments.max_new_tokens,
    )
    facts = {"model": subject.describe(), "device": report.device()} | workload.describe()
    facts |= {"sampling": None, "temperatures": arguments.temperatures, "samples": arguments.samples}
    if arguments.json:
        text = json.dumps(facts | {"acceptance": sampled.as_json(rows)})
        print(text) if arguments.json == "-" else Path(arguments.json).write_text(text + "\n", encoding="utf-8")
        return 0
    print(
        f"Tokens per cycle; {facts['prompts']} prompts of {facts['prompt_tokens']} tokens ({facts['prompt_hash']}),"
        f" samples of each: {arguments.samples}, {facts['max_new_tokens']} new tokens, {pair.dtype} on"
        f" {facts['device']['kind']}\n"
    )
    print("\n".join(sampled.table(rows)))
    return 0


def _subject(arguments: argparse.Namespace) -> Subject:
    options = DraftOptions(retrieval=arguments.retrieval, tail=arguments.tail)
    if arguments.random_weights:
        return random_weights(arguments.random_weights, dtype=arguments.dtype, options=options)
    return converted(arguments.model, dtype=arguments.dtype, options=options)


def _workload(subject: Subject, arguments: argparse.Namespace) -> Workload:
    sampling = SamplingParams() if arguments.temperatures else params_of(arguments)
    if subject.random_weights:
        vocab_size = subject.pair.target_config.vocab_size
        prompts, source = at_random(vocab_size, max(arguments.concurrency), arguments.prompt_tokens)
    else:
        text = TextModel.read(arguments.model / "target")
        prompts, source = from_files(text, arguments.files, arguments.prompt_tokens)
        if not arguments.temperatures and len(prompts) < max(arguments.concurrency):
            raise ValueError(
                f"--concurrency: got {max(arguments.concurrency)} requests at a time, but there are only"
                f" {len(prompts)} prompts"
            )
    return Workload(tuple(prompts), source, arguments.max_new_tokens, sampling)


def _tell(line: str) -> None:
    print(f"dspine bench: {line}", file=sys.stderr, flush=True)
