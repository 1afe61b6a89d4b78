"""What `dspine generate` tells about a run: lines for people, and the fields of its JSON object."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from dspine_jax.generate import Stats
from dspine_jax.pair import Pair
from dspine_jax.sampling.logprobs import Logprobs
from serve.comparison import Difference
from serve.completion import Completion, Timing

_BAR = 40


@dataclasses.dataclass(frozen=True)
class Result:
    """One run of the command. `plain` and `difference` belong to a comparison with plain decoding."""

    prompt_tokens: int
    main: Completion
    speculative: bool
    warmed_up: bool
    plain: Completion | None = None
    difference: Difference | None = None


def statistics(result: Result, pair: Pair) -> Iterator[str]:
    """Lines about acceptance and speed."""
    main = result.main
    yield (
        f"tokens: {len(main.token_ids)} new after a prompt of {result.prompt_tokens}, "
        f"finish reason {main.finish_reason}"
    )
    if main.seed is not None:
        yield f"sampled with --seed {main.seed}"
    if result.speculative:
        yield from acceptance(main.stats)
    yield _speed("speculative" if result.speculative else "plain", main.timing)
    if result.plain:
        yield _speed("plain", result.plain.timing)
        ours, other = main.timing.tokens_per_second, result.plain.timing.tokens_per_second
        if ours and other:
            yield f"speculative decoding is {ours / other:.2f} times as fast as plain decoding"
    yield (
        f"(speed: wall time after the first token, one request, one dispatch per cycle or token, {pair.dtype}"
        f" on {device()}, everything compiled by a warm-up before)"
    )


def acceptance(stats: Stats) -> Iterator[str]:
    """Acceptance length and how often each number of proposals was accepted."""
    cycles = sum(stats.cycles)
    if cycles == 0:
        yield "acceptance length: none, the first token was the only one"
        return
    yield (
        f"acceptance length: {stats.acceptance_length:.2f} tokens per cycle over {cycles} cycles"
        f" (1.00: no proposal accepted), {stats.rows_per_cycle:.4g} rows each"
    )
    histogram = stats.histogram
    yield f"cycles by accepted proposals, 0 to {stats.block_size - 1}:"
    width = len(str(histogram.max()))
    for accepted, count in enumerate(histogram):
        bar = "#" * math.ceil(_BAR * count / histogram.max())
        yield f"  {accepted:2d}  {count:{width}d}  {bar}".rstrip()


def comparison(result: Result) -> str:
    """One line: whether both ways gave the same tokens."""
    found = result.difference
    if found is None:
        return f"same tokens as plain decoding: yes, all {len(result.main.token_ids)}"
    line = f"same tokens as plain decoding: NO, they differ at new token {found.position}: speculative "
    line += f"{_token(found.speculative)}, plain {_token(found.plain)}"
    if found.logit_margin is not None:
        line += f"; the target scores plain's token {found.logit_margin:.3g} higher"
    return line


def as_json(result: Result, pair: Pair, model: dict[str, str], versions: dict[str, str]) -> dict[str, Any]:
    """The fields of `--json`; speeds are null unless everything was compiled before."""
    main = result.main
    fields: dict[str, Any] = {
        "text": main.text,
        "token_ids": main.token_ids,
        "finish_reason": main.finish_reason,
        "seed": main.seed,
        "logprobs": _logprobs(main.logprobs),
        "prompt_tokens": result.prompt_tokens,
        "mode": "speculative" if result.speculative else "plain",
        "stats": _stats(main.stats) if result.speculative else None,
        "timing": _timing(main.timing, warmed_up=result.warmed_up),
    }
    if result.plain:
        found = result.difference
        fields["plain"] = {
            "same_tokens": found is None,
            "first_difference": None if found is None else dataclasses.asdict(found),
            "token_ids": result.plain.token_ids,
            "timing": _timing(result.plain.timing, warmed_up=result.warmed_up),
        }
    return fields | {
        "model": model,
        "device": device(),
        "dtype": str(pair.dtype),
        "draft_options": dataclasses.asdict(pair.plan.options),
        "versions": versions,
    }


def device() -> str:
    """What the pair runs on."""
    first = jax.devices()[0]
    return first.platform if first.device_kind == first.platform else f"{first.platform} ({first.device_kind})"


def _stats(stats: Stats) -> dict[str, Any]:
    length = stats.acceptance_length
    return {
        "cycles": sum(stats.cycles),
        "acceptance_length": None if math.isnan(length) else length,
        "accepted_histogram": np.asarray(stats.histogram).tolist(),
        "block_size": stats.block_size,
        "target_rows": sum(stats.target_rows),
        "width_costs": None if stats.width_costs is None else dataclasses.asdict(stats.width_costs),
    }


def _logprobs(found: Logprobs | None) -> list[dict[str, Any]] | None:
    """One object per token; the best tokens as pairs of id and logprob."""
    if found is None:
        return None
    best = [list(zip(i, t, strict=True)) for i, t in zip(found.top_ids.tolist(), found.top.tolist(), strict=True)]
    return [{"logprob": own, "top": top} for own, top in zip(found.tokens.tolist(), best, strict=True)]


def _timing(timing: Timing, *, warmed_up: bool) -> dict[str, Any]:
    return {
        "warmed_up": warmed_up,
        "prompt_seconds": timing.prompt_seconds,
        "decode_seconds": timing.decode_seconds,
        "decoded_tokens": timing.decoded_tokens,
        "tokens_per_second": timing.tokens_per_second if warmed_up else None,
    }


def _speed(name: str, timing: Timing) -> str:
    speed = timing.tokens_per_second
    shown = "no tokens to time" if speed is None else f"{speed:.1f} tokens/s"
    return (
        f"{name + ':':<13}{shown} ({timing.decoded_tokens} tokens in {timing.decode_seconds:.2f} s; "
        f"first token after {timing.prompt_seconds:.2f} s)"
    )


def _token(token: int | None) -> str:
    return "had ended" if token is None else f"token {token}"
