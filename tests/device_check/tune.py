"""Times every candidate tiling of every kernel and writes the fastest, for `pallas_kernels.tuning` to read."""

import dataclasses
import datetime
import functools
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax

from pallas_kernels import block_attention, bridge, projection, retrieval, tail
from pallas_kernels.device import num_sms
from pallas_kernels.gated_delta import mosaic_replay
from pallas_kernels.retrieval.tiles import padded_rows
from tests.device_check.kernels import seconds
from tests.device_check.lookup import lookup
from tests.kernels.programs import all_programs


def tune(ops: Sequence[str], path: Path) -> Iterator[dict[str, Any]]:
    """One finding per program; the file grows with each. `ops` empty: all that have tiles to choose."""
    tiles: dict[str, dict[str, Any]] = {}
    for program in all_programs():
        if program.op not in _CANDIDATES or (ops and program.op not in ops):
            continue
        op, size, heuristic = lookup(program)
        measured = {}
        for candidate in _CANDIDATES[program.op](program, heuristic):
            function = functools.partial(program.function, tiles=candidate)
            try:
                measured[candidate] = seconds(dataclasses.replace(program, function=function), "mosaic_gpu") * 1e6
            except Exception as error:  # one tiling that does not run must not hide the others
                yield {"op": op, "size": size, "tiles": str(candidate), "error": str(error)[:300], "ok": False}
        if not measured:
            continue
        best = min(measured, key=lambda candidate: measured[candidate])
        tiles.setdefault(op, {})[size] = {"microseconds": measured[best], "tiles": dataclasses.asdict(best)}
        write(path, tiles)
        heuristic_us = measured.get(heuristic)
        yield {
            "op": op,
            "size": size,
            "best": str(best),
            "us": measured[best],
            "heuristic_us": heuristic_us,
            "ok": True,
        }


def write(path: Path, tiles: dict[str, dict[str, Any]]) -> None:
    """The file of the current device."""
    path.parent.mkdir(parents=True, exist_ok=True)
    facts = {
        "device": jax.devices()[0].device_kind,
        "date": datetime.date.today().isoformat(),
        "jax": jax.__version__,
        "tiles": tiles,
    }
    path.write_text(json.dumps(facts, indent=1) + "\n")


def _retrieval(program, _heuristic):
    *rows, _ = program.shapes[0].shape
    return retrieval.candidate_tiles(padded_rows(math.prod(rows)))


def _attention(program, _heuristic):
    q, k = program.shapes[:2]
    slots, rows, heads, dim = q.shape
    geometry = block_attention.Geometry.of(rows, heads // k.shape[2], dim)
    return block_attention.candidate_tiles(geometry, slots=slots, kv_heads=k.shape[2], sms=num_sms())


def _replay(program, _heuristic):
    state, _, _, q = program.shapes[:4]
    return mosaic_replay.candidate_tiles(state.shape[1], q.shape[2], state.shape[2])


def _bridge(program, heuristic):
    x, _, readout, write = program.shapes[:4]
    return bridge.candidate_tiles(heuristic, hidden=x.shape[-1], code=readout.shape[0], message=write.shape[1])


def _tail(program, heuristic):
    hidden, message = program.shapes[5].shape
    return tail.candidate_tiles(heuristic, hidden=hidden, message=message)


def _project(program, _heuristic):
    x, *weights = program.shapes
    return _projection("several", x, weights)


def _project_gated(program, _heuristic):
    x, gate, _ = program.shapes
    return _projection("gated", x, [gate])


def _project_norm(program, _heuristic):
    x, weight = program.shapes[:2]
    return _projection("shares", x, [weight])


def _projection(kind, x, weights):
    rows, depth = x.shape
    outputs = [weight.shape[0] for weight in weights]
    return projection.candidate_tiles(kind, rows=rows, outputs=outputs, depth=depth, multiprocessors=num_sms())


_CANDIDATES = {
    "project": _project,
    "project_gated": _project_gated,
    "project_norm": _project_norm,
    "retrieval": _retrieval,
    "bridge": _bridge,
    "tail_scores": _tail,
    "gated_delta_replay": _replay,
    "paged_block_attention": _attention,
    "ring_block_attention": _attention,
}
