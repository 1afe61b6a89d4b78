"""The arguments of `dspine serve`, and what they mean."""

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import get_args

from dspine_jax import DraftOptions
from dspine_jax.sampling.width import Verification
from pallas_kernels.implementation import Implementation
from serve.engine import EngineConfig
from serve.http.layers.hosts import LOOPBACK
from serve.http.lifecycle import is_loopback
from serve.http.loading import DEFAULT_CONTEXT, Sizes, Source
from serve.http.settings import Settings
from serve.sampling_options import add_verification

KEY_VARIABLE = "DSPINE_API_KEY"
DTYPES = ("bfloat16", "float32")

DESCRIPTION = """\
Answer OpenAI's protocol over HTTP: /v1/chat/completions, /v1/completions and what belongs to them, many requests at
a time. The server listens at once; /ready answers 200 when the model is loaded and every program is compiled.
"""

EPILOG = """\
exit status: 0 told to leave, and everything was finished or cut off after --drain-timeout; 1 the model cannot be
used, or the port is taken; 2 wrong usage

example: dspine serve MODEL_DIR --slots 8 --context 8192
"""

_SIZES = {name: field.default for name, field in EngineConfig.__dataclass_fields__.items()}
_SETTINGS = {name: field.default for name, field in Settings.__dataclass_fields__.items()}


def build_parser() -> argparse.ArgumentParser:
    """Arguments of `dspine serve`."""
    parser = argparse.ArgumentParser(
        prog="dspine serve",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="%(prog)s (MODEL_DIR | --target DIR --draft DIR) [OPTIONS]",
    )
    what = parser.add_argument_group("model")
    what.add_argument("model", nargs="?", type=Path, metavar="MODEL_DIR", help="converted folder")
    what.add_argument("--target", type=Path, metavar="DIR", help="Hugging Face folder, used without conversion")
    what.add_argument("--draft", type=Path, metavar="DIR", help="Hugging Face folder of its drafter")
    what.add_argument("--name", help="what clients call the model (default: the folder's name)")
    what.add_argument("--dtype", choices=DTYPES, help="of weights and caches (default: the folder's own)")
    what.add_argument(
        "--implementation", choices=get_args(Implementation), help="of every operation (default: the device decides)"
    )

    size = parser.add_argument_group("sizes; each costs memory")
    size.add_argument("--slots", type=int, metavar="N", help="requests that run at a time")
    size.add_argument(
        "--context",
        type=int,
        metavar="N",
        help=f"most tokens of a request, prompt and answer together (default: the model's, at most {DEFAULT_CONTEXT})",
    )
    size.add_argument("--chunk", type=int, metavar="N", help="prompt tokens read between two cycles")
    size.add_argument("--pages", type=int, metavar="N", help="pages that requests share (default: enough for all)")
    size.add_argument("--queue-limit", type=int, metavar="N", help="requests that may wait")
    size.add_argument("--queue-timeout", type=float, metavar="S", help="seconds that one may wait")
    size.add_argument("--max-logprobs", type=int, metavar="N", help="most alternatives per token")
    size.add_argument("--prefix-cache-bytes", type=int, metavar="N", help="for prompts that may come again; 0: none")
    size.add_argument(
        "--mem-fraction", type=float, metavar="X", help="share of the device's memory that JAX takes, above 0, up to 1"
    )
    parser.set_defaults(**{name: _SIZES[name] for name in ("slots", "chunk", "pages", "queue_limit")})
    parser.set_defaults(**{name: _SIZES[name] for name in ("queue_timeout", "max_logprobs", "prefix_cache_bytes")})

    draft = parser.add_argument_group("drafting (changes the speed, never the text, nor the law of a sampled one)")
    defaults = DraftOptions()
    draft.add_argument(
        "--retrieval", choices=("fp8", "direct"), default=defaults.retrieval, help="how candidates are found"
    )
    add_verification(draft)

    net = parser.add_argument_group("network")
    net.add_argument("--host", default="127.0.0.1", help="address to listen at (default: %(default)s)")
    net.add_argument("--port", type=int, default=8000, help="0: any free one (default: %(default)s)")
    net.add_argument("--api-key-file", type=Path, metavar="FILE", help=f"keys, one a line (or one in {KEY_VARIABLE})")
    net.add_argument("--allowed-host", action="append", default=[], metavar="NAME", help="a Host header to accept")
    net.add_argument("--cors-origin", action="append", default=[], metavar="URL", help="a web page that may call")
    net.add_argument("--rate-limit", type=float, metavar="N", help="requests per minute and client; 0: no limit")
    net.add_argument("--rate-burst", type=int, metavar="N", help="requests at once under that limit")
    net.add_argument("--max-body", type=int, metavar="BYTES", help="of a request")
    net.add_argument("--max-connections", type=int, metavar="N", help="open at a time")
    for name, text in (
        ("body-timeout", "for a whole body to arrive"),
        ("header-timeout", "for a request to begin"),
        ("write-timeout", "for a client to take what was sent"),
        ("idle-timeout", "between two requests of a connection"),
        ("keep-alive", "without a token before a stream gets a comment"),
        ("drain-timeout", "for running requests at shutdown"),
    ):
        net.add_argument(f"--{name}", type=float, metavar="S", help=f"seconds {text}")
    net.add_argument("--log-prompts", action="store_true", help="write prompts to the log")
    parser.set_defaults(**{name: value for name, value in _SETTINGS.items() if isinstance(value, int | float)})
    for action in parser._actions:
        default = parser.get_default(action.dest)
        if action.help and "default" not in action.help and isinstance(default, int | float) and action.nargs != 0:
            action.help += " (default: %(default)s)"
    return parser


def source_of(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> Source:
    """Ends the program for folders that do not belong together."""
    raw = (arguments.target is not None) + (arguments.draft is not None)
    if raw == 1:
        parser.error("--target and --draft belong together")
    if bool(raw) == (arguments.model is not None):
        parser.error("wanted one model: a converted folder, or --target and --draft")
    return Source(
        folder=arguments.model,
        target=arguments.target,
        draft=arguments.draft,
        dtype=arguments.dtype,
        options=DraftOptions(retrieval=arguments.retrieval),
        implementation=arguments.implementation,
    )


def sizes_of(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> Sizes:
    """Ends the program for sizes that no model could have."""
    width = arguments.verify_width
    if width == "auto":
        parser.error("--verify-width auto is not supported by the server; name a number of rows")
    try:
        sizes = Sizes(
            context=arguments.context,
            slots=arguments.slots,
            chunk=arguments.chunk,
            pages=arguments.pages,
            queue_limit=arguments.queue_limit,
            queue_timeout=arguments.queue_timeout,
            max_logprobs=arguments.max_logprobs,
            prefix_cache_bytes=arguments.prefix_cache_bytes,
            verification=Verification(arguments.verification, () if width is None else (width,)),
        )
        sizes.check()
    except ValueError as error:
        parser.error(str(error))
    fraction = arguments.mem_fraction
    if fraction is not None and not 0 < fraction <= 1:
        parser.error(f"--mem-fraction is {fraction}, wanted a share above 0, up to 1")
    return sizes


def settings_of(
    parser: argparse.ArgumentParser, arguments: argparse.Namespace, environment: Mapping[str, str] = os.environ
) -> Settings:
    """Ends the program for values that cannot work, and for key files that cannot be read."""
    fields = {name: getattr(arguments, name) for name, value in _SETTINGS.items() if isinstance(value, int | float)}
    # Bound to loopback the server is for this machine, and for no web page that says it is this machine.
    hosts = (*LOOPBACK, *arguments.allowed_host) if is_loopback(arguments.host) else tuple(arguments.allowed_host)
    try:
        return Settings(
            api_keys=_keys(arguments.api_key_file, environment.get(KEY_VARIABLE)),
            allowed_hosts=hosts,
            cors_origins=tuple(arguments.cors_origin),
            **fields,
        )
    except (ValueError, OSError) as error:
        parser.error(str(error))


def _keys(file: Path | None, variable: str | None) -> tuple[str, ...]:
    if file is not None and variable is not None:
        raise ValueError(f"got --api-key-file and {KEY_VARIABLE}; give one")
    if variable is not None:
        if not variable.strip():
            raise ValueError(f"{KEY_VARIABLE} is empty; unset it to run without a key")
        return (variable.strip(),)
    if file is None:
        return ()
    keys = tuple(line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line.strip())
    if not keys:
        raise ValueError(f"{file} holds no key")
    return keys
