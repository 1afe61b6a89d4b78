"""`dspine chat`: a conversation with a converted pair."""

import argparse
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp

from dspine_jax import Pair, load
from dspine_jax.config import ConfigError
from dspine_jax.errors import WeightsError
from dspine_jax.request import check_requests
from dspine_jax.sampling.width import Verification
from serve.chat import ChatTemplate
from serve.chat_cli.loop import chat
from serve.chat_cli.screen import Screen
from serve.chat_cli.session import Model, Session
from serve.engine import Engine, EngineConfig
from serve.sampling_options import METHODS, add_sampling, params_of, positive
from serve.text import TextError, TextModel

DTYPES = ("bfloat16", "float32")
DEFAULT_CONTEXT = 32768

DESCRIPTION = """\
Chat with a converted pair, each answer on the screen as it is accepted. /help in the chat lists its commands.
"""

EPILOG = """\
Lines from a pipe are messages, too: then standard output gets the answers alone.

exit status: 0 done; 1 the model cannot be used, or a message got no answer; 2 wrong usage; 130 interrupted

example: dspine chat MODEL_DIR --temperature 0.7 --origins
"""


def build_parser() -> argparse.ArgumentParser:
    """Arguments of `dspine chat`."""
    parser = argparse.ArgumentParser(
        prog="dspine chat",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", type=Path, metavar="MODEL_DIR", help="converted folder")
    parser.add_argument("--dtype", choices=DTYPES, help="of weights and caches (default: the folder's own)")
    parser.add_argument(
        "--context",
        type=positive,
        metavar="N",
        help=f"most tokens of the conversation (default: the model's, at most {DEFAULT_CONTEXT})",
    )
    parser.add_argument(
        "--max-new-tokens", type=positive, metavar="N", help="of one answer (default: what the context leaves)"
    )
    parser.add_argument("--system", metavar="TEXT", help="the system prompt")
    parser.add_argument(
        "--think", choices=("on", "off"), default="on", help="think before answering (default: %(default)s)"
    )
    parser.add_argument(
        "--origins",
        action="store_true",
        help="show the tokens as the model wrote them, coloured: accepted proposal, correction or bonus",
    )
    add_sampling(parser)
    drafting = parser.add_argument_group("drafting (changes the speed, never the law of the text)")
    drafting.add_argument(
        "--verification",
        choices=METHODS,
        default="token",
        help="accept sampled proposals one by one, or a block at once (default: %(default)s)",
    )
    drafting.add_argument(
        "--verify-width", type=positive, metavar="ROWS", help="rows that the target runs (default: the whole block)"
    )
    return parser


def main(argv: Sequence[str]) -> int:
    """Runs `dspine chat`; the exit status."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    try:
        sampling = params_of(arguments)
    except ValueError as error:
        parser.error(str(error))
    screen = _screen()
    try:
        tokens = arguments.model / "target"
        template = ChatTemplate.read(tokens) if tokens.is_dir() else None
        screen.note(f"reading {arguments.model}")
        pair = load(arguments.model, dtype=arguments.dtype)
        text = TextModel.read(tokens)
        template = template or ChatTemplate.read(tokens)
        if pair.dtype == jnp.float32:
            # Whoever asks for float32 wants what plain decoding gives, without the reduced products of some devices.
            jax.config.update("jax_default_matmul_precision", "highest")
        stops = tuple(dict.fromkeys(pair.target_config.eos_token_ids + text.eos_token_ids))
        config = _engine_config(pair, arguments)
        config.check(pair)
        check_requests(pair.target_config, [[0]], 1, stops, [sampling])
        engine = Engine(pair, config)
    except (TextError, ConfigError, WeightsError, ValueError) as error:
        print(f"dspine chat: error: {error}", file=sys.stderr)
        return 1
    model = Model(
        engine=engine,
        text=text,
        template=template,
        context=config.context,
        stop_token_ids=stops,
        sampling=sampling,
        max_new_tokens=arguments.max_new_tokens,
        by_origin=arguments.origins and screen.colours,
    )
    session = Session(model, system=arguments.system, thinking=arguments.think == "on")
    try:
        engine.start(screen.note)
        _greet(arguments, screen)
        return 1 if chat(session, screen) else 0
    finally:
        engine.stop()


def _engine_config(pair: Pair, arguments: argparse.Namespace) -> EngineConfig:
    """One conversation at a time, and room for it alone."""
    longest = pair.target_config.max_position_embeddings
    widths = () if arguments.verify_width is None else (arguments.verify_width,)
    return EngineConfig(
        context=arguments.context or min(longest, DEFAULT_CONTEXT),
        slots=1,
        max_logprobs=0,
        verification=Verification(arguments.verification, widths),
    )


def _screen() -> Screen:
    for stream, errors in ((sys.stdin, "surrogateescape"), (sys.stdout, "replace"), (sys.stderr, "replace")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=errors)
    styles = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    terminal = sys.stdout.isatty()
    err_colours = styles and sys.stderr.isatty()
    return Screen(sys.stdout, sys.stderr, terminal=terminal, colours=styles and terminal, err_colours=err_colours)


def _greet(arguments: argparse.Namespace, screen: Screen) -> None:
    if arguments.origins and screen.colours:
        screen.legend()
    elif arguments.origins:
        screen.note("--origins needs a terminal with colours: the answers are shown without")
    if sys.stdin.isatty():
        screen.note("/help lists the commands, Ctrl-D leaves")
