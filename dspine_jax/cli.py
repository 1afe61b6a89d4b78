"""The `dspine` command: finds the module of a sub-command and runs it. Nothing else is imported."""

import dataclasses
import importlib
import os
import sys
from collections.abc import Callable, Sequence

from dspine_jax.versions import version_of


@dataclasses.dataclass(frozen=True)
class Command:
    """`module` has `main(argv) -> exit status` and answers `--help`."""

    module: str
    summary: str
    compiles: bool = False  # keeps compiled programs on disk


COMMANDS = {
    "convert": Command("convert.cli", "turn a Hugging Face target and drafter into one folder"),
    "inspect": Command("convert.inspection", "show what each tensor of a checkpoint would become"),
    "generate": Command("serve.generate_cli", "continue a prompt, and measure it", compiles=True),
    "chat": Command("serve.chat_cli.cli", "chat in the terminal", compiles=True),
    "serve": Command("serve.http.cli", "answer OpenAI's protocol over HTTP, many requests at a time", compiles=True),
    "bench": Command("serve.benchmark.cli", "measure acceptance and speed beside plain decoding", compiles=True),
    "plan": Command("dspine_jax.planning.cli", "what fits a GPU, and how fast it can be at best; needs no GPU"),
    "train": Command("dspine_jax.training.cli", "train a small target and distil a drafter", compiles=True),
}

# Packages that not every installation has, and the extra that brings them.
EXTRAS: dict[str, str] = dict.fromkeys(
    ("tokenizers", "fastapi", "jinja2", "prometheus_client", "pydantic", "uvicorn"), "serve"
)

INTERRUPTED = 128 + 2  # what a shell reports for SIGINT
CLOSED_PIPE = 128 + 13  # and for SIGPIPE


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `dspine` with these arguments (default: the process's own); the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        status = _run(arguments)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        print("\ndspine: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The interpreter flushes once more at its end; that must not fail as well.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CLOSED_PIPE


def usage() -> str:
    """The text of `dspine --help`."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {command.summary}" for name, command in COMMANDS.items()]
    return "\n".join(
        [
            "usage: dspine COMMAND [ARGUMENTS]",
            "",
            "Lossless speculative decoding with the DSpine block drafter.",
            "",
            *lines,
            "",
            "`dspine COMMAND --help` explains a command; `dspine --version` prints the version.",
        ]
    )


def _run(arguments: list[str]) -> int:
    match arguments:
        case ["-h" | "--help", *_]:
            print(usage())
            return 0
        case ["--version", *_]:
            print(f"dspine-jax {version_of('dspine-jax')}")
            return 0
        case [name, *rest] if name in COMMANDS:
            command = _load(name)
            return 1 if command is None else command(rest)
        case [name, *_]:
            print(
                f"dspine: error: unknown command {name!r}; choose one of {', '.join(COMMANDS)}",
                file=sys.stderr,
            )
            return 2
        case _:
            print(usage(), file=sys.stderr)
            return 2


def _load(name: str) -> Callable[[list[str]], int] | None:
    command = COMMANDS[name]
    try:
        module = importlib.import_module(command.module)
    except ModuleNotFoundError as error:
        extra = EXTRAS.get(error.name or "")
        if extra is None:
            raise
        print(
            f"dspine {name}: error: the package {error.name} is not installed; "
            f"install it with: pip install 'dspine-jax[{extra}]'",
            file=sys.stderr,
        )
        return None
    if command.compiles:
        importlib.import_module("dspine_jax.compile_cache").enable()
    return module.main


if __name__ == "__main__":
    sys.exit(main())
