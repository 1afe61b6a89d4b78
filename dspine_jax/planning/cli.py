"""`dspine plan`: does this pair, context and concurrency fit this GPU, and how fast can a cycle be at best?

Compiles the real programs for the described GPU on a machine that has none (extra `aot`). Exit status: 0 it fits,
1 it does not, 2 the question cannot be answered.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import jax

from dspine_jax.buckets import PREFILL_CHUNK
from dspine_jax.deviceless import abstract_gpu
from dspine_jax.drafter.propose import DraftOptions
from dspine_jax.errors import WeightsError
from dspine_jax.planning import frontier_plot, presets, report
from dspine_jax.planning.capacity import Capacity, Temporaries
from dspine_jax.planning.gpu import GPU
from dspine_jax.planning.pair import AbstractPair, positions, slots
from dspine_jax.planning.programs import compile_programs, kernel_obstacle
from dspine_jax.request import MAX_BATCH


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line, without the usage."""
        self.exit(2, f"{self.prog}: error: {message}\n")


def build_parser() -> argparse.ArgumentParser:
    """Arguments of `dspine plan`."""
    parser = _Parser(prog="dspine plan", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    config = f"a config.json, a folder that holds one, or one of {', '.join(presets.names())}"
    parser.add_argument(
        "--gpu", required=True, help="h100-80gb, h200, b200, rtx-pro-6000, or a file with XLA's GpuTargetConfig"
    )
    parser.add_argument("--target", required=True, metavar="CONFIG", help=config)
    parser.add_argument("--draft", required=True, metavar="CONFIG", help="likewise, the drafter's")
    parser.add_argument("--slots", required=True, type=int, help="requests at the same time")
    parser.add_argument("--context", required=True, type=int, help="tokens of a request, prompt and answer together")
    parser.add_argument("--chunk", type=int, default=PREFILL_CHUNK, help="prompt tokens of a dispatch (%(default)s)")
    parser.add_argument(
        "--prefix-cache-bytes",
        type=int,
        default=0,
        metavar="BYTES",
        help="what a server keeps of earlier prompts (%(default)s; `dspine serve` takes 4 GiB unless told otherwise)",
    )
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), help="default: what the target's config says")
    parser.add_argument("--retrieval", choices=("fp8", "direct"), default="fp8", help="of candidates (%(default)s)")
    parser.add_argument("--tail", choices=("direct", "table"), default="direct", help="(%(default)s)")
    parser.add_argument("--no-compile", action="store_true", help="arithmetic only: seconds, and no temporaries")
    parser.add_argument("--search", action="store_true", help="also the largest context for every number of slots")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw what --search finds (extra `plot`)")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    return parser


def main(argv: Sequence[str]) -> int:
    """Runs `dspine plan`."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    if jax.config.jax_platforms is None:
        # A plan needs no device, and must not take one from a process that does.
        jax.config.update("jax_platforms", "cpu")
    if jax.config.jax_compilation_cache_dir is not None:
        # Programs for a GPU that is not here can be written to the cache but not read back.
        jax.config.update("jax_enable_compilation_cache", False)
    try:
        _check(arguments)
        plan = _plan(arguments)
        if arguments.plot:
            title = f"{arguments.target}, {arguments.draft} on {plan.gpu.model}"
            frontier_plot.draw(plan.frontier or [], title, arguments.plot)
    except (ValueError, WeightsError, OSError, jax.errors.JaxRuntimeError) as error:
        parser.error(presets.in_one_line(error))
    print(json.dumps(plan.as_json()) if arguments.json else report.text(plan))
    return 0 if plan.need.fits else 1


def _check(arguments: argparse.Namespace) -> None:
    if not 1 <= arguments.slots <= MAX_BATCH:
        raise ValueError(f"--slots is {arguments.slots}, wanted 1 to {MAX_BATCH}")
    if arguments.chunk < 1:
        raise ValueError(f"--chunk is {arguments.chunk}, wanted at least 1")
    if arguments.prefix_cache_bytes < 0:
        raise ValueError(f"--prefix-cache-bytes is {arguments.prefix_cache_bytes}, wanted at least 0")
    if arguments.plot and not arguments.search:
        raise ValueError("--plot draws what --search finds: add --search")
    if arguments.plot and not frontier_plot.available():
        raise ValueError("--plot needs matplotlib; install it with: pip install 'dspine-jax[plot]'")


def _plan(arguments: argparse.Namespace) -> report.Plan:
    gpu = GPU.read(arguments.gpu)
    target, drafter = presets.read_target(arguments.target), presets.read_drafter(arguments.draft)
    limit = target.max_position_embeddings
    if not 2 <= arguments.context <= limit:
        raise ValueError(f"--context is {arguments.context}, wanted 2 to {limit}, the target's max_position_embeddings")
    options = DraftOptions(retrieval=arguments.retrieval, tail=arguments.tail)
    pair = AbstractPair.build(target, drafter, arguments.dtype, options)
    state = pair.state(arguments.slots, arguments.context)

    programs, temporaries, kernels, seconds = (), None, None, 0.0
    if not arguments.no_compile:
        device = abstract_gpu(arguments.gpu)
        kernels = kernel_obstacle(device)
        print(f"dspine plan: compiling for {gpu.model}, which takes a minute or two", file=sys.stderr, flush=True)
        start = time.perf_counter()
        programs = compile_programs(pair, state, device, chunk=arguments.chunk)
        seconds = time.perf_counter() - start
        extra = max(program.extra_bytes for program in programs)
        temporaries = Temporaries(bytes=extra, slots=slots(state), positions=positions(state))
    capacity = Capacity(pair, gpu, temporaries, arguments.prefix_cache_bytes)
    return report.Plan(
        request=report.Request(
            target=arguments.target,
            draft=arguments.draft,
            slots=arguments.slots,
            context=arguments.context,
            chunk=arguments.chunk,
        ),
        pair=pair,
        gpu=gpu,
        capacity=capacity,
        programs=programs,
        compile_wall_seconds=seconds,
        kernels=kernels,
        frontier=capacity.frontier() if arguments.search else None,
    )
