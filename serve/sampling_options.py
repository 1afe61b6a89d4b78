"""The sampling arguments of a command, and what they mean."""

import argparse
from collections.abc import Callable

from dspine_jax.sampling import SamplingParams
from dspine_jax.sampling.width import Width

METHODS = ("token", "block")


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """The fields of `SamplingParams` as flags of the same names; greedy without any of them."""
    sampling = parser.add_argument_group("sampling (greedy by default; the law is the target's own, drafter or not)")
    sampling.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0 is greedy (default)")
    sampling.add_argument("--top-k", type=int, metavar="K", help="keep the K most likely tokens")
    sampling.add_argument("--top-p", type=float, metavar="P", help="keep a token while the mass before it is below P")
    sampling.add_argument(
        "--min-p", type=float, metavar="P", help="keep tokens of at least P times the greatest probability"
    )
    sampling.add_argument("--seed", type=int, metavar="N", help="repeat a run (default: a fresh seed, told by --stats)")
    for name, what in (
        ("presence", "subtracted from tokens emitted before"),
        ("frequency", "subtracted for each time that a token was emitted"),
    ):
        sampling.add_argument(f"--{name}-penalty", type=float, default=0.0, metavar="X", help=what)
    sampling.add_argument(
        "--repetition-penalty", type=float, default=1.0, metavar="X", help="weakens tokens of prompt and output"
    )
    sampling.add_argument(
        "--logit-bias", type=_bias, action="append", default=[], metavar="ID=X", help="added to a token; repeatable"
    )
    sampling.add_argument("--min-tokens", type=int, default=0, metavar="N", help="no end-of-text token before N tokens")
    sampling.add_argument("--bad-token-ids", type=int, nargs="+", default=[], metavar="ID", help="never emit these")
    sampling.add_argument("--allowed-token-ids", type=int, nargs="+", metavar="ID", help="emit only these")


def add_verification(parser: argparse._ArgumentGroup | argparse.ArgumentParser) -> None:
    """How proposals are verified: never what is emitted, by law, but how fast."""
    parser.add_argument(
        "--verification",
        choices=METHODS,
        default="token",
        help="accept sampled proposals one by one, or a block at once, which accepts at least as many",
    )
    parser.add_argument(
        "--verify-width",
        type=width,
        metavar="ROWS",
        help="rows of the block that the target runs, or auto: chosen in each cycle by measured cost (default: all)",
    )


def params_of(arguments: argparse.Namespace, *, logprobs: int | None = None) -> SamplingParams:
    """Raises ValueError for values out of range, and for a token that has two biases."""
    bias = dict(arguments.logit_bias)
    if len(bias) < len(arguments.logit_bias):
        raise ValueError("--logit-bias names a token twice")
    same: list[str] = [
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "seed",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "min_tokens",
        "bad_token_ids",
        "allowed_token_ids",
    ]
    fields = {name: getattr(arguments, name) for name in same}
    return SamplingParams(**fields, logit_bias=bias or None, logprobs=logprobs)


def width(value: str) -> Width:
    """A number of rows, or "auto"."""
    return "auto" if value == "auto" else _whole(value)


def positive(value: str) -> int:
    """For argparse: a whole number, at least 1."""
    try:
        number = int(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"wanted a whole number, got {value!r}") from None
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is too small, wanted at least 1")
    return number


def _bias(value: str) -> tuple[int, float]:
    token, _, number = value.partition("=")
    return _parse(int, token, value, "ID=X"), _parse(float, number, value, "ID=X")


def _whole(value: str) -> int:
    return _parse(int, value, value, "a number of rows or auto")


def _parse[T](kind: Callable[[str], T], part: str, value: str, wanted: str) -> T:
    try:
        return kind(part)
    except ValueError:
        raise argparse.ArgumentTypeError(f"wanted {wanted}, got {value!r}") from None
