"""A plan as one record, as a table for people, and as JSON.

Keys of the JSON object (bytes are integers, seconds floats):

    gpu         name, model, memory_bytes, bandwidth_bytes_per_second, peak_operations_per_second (null: unknown)
    pair        target, draft as given; target_hash, draft_hash (equal for equal configurations); dtype, retrieval, tail
    request     slots, context, chunk as asked for; allocated_slots, positions_per_slot as rounded up
    memory      weights {part: bytes}, state {part: bytes}, temporaries (null: not compiled), prefix_cache, reserve,
              total, headroom
    fits        true or false; without compiled programs temporaries count as 0
    limits      largest_context (for these slots), most_slots (for this context); null: nothing fits
    memory_share    the least XLA_CLIENT_MEM_FRACTION to run with
    cycle       the floor: parts {part: bytes}, bytes, operations, memory_seconds, arithmetic_seconds (null: unknown),
                seconds (the larger of the two)
    plain_step  the same of one step of plain decoding
    programs    list of name, temporary_bytes, new_output_bytes, argument_bytes, mosaic_kernels, lower_seconds,
                compile_seconds; empty with --no-compile
    compile_wall_seconds    of all programs together
    kernels     why XLA's forms are compiled instead of this project's GPU kernels; null: nothing stands in their way
    frontier    only with --search: list of slots, largest_context (null: nothing fits)
    versions    package -> version
"""

import dataclasses
import math
from typing import Any

from dspine_jax.planning.capacity import Capacity, Need
from dspine_jax.planning.gpu import DEFAULT_SHARE, FRAGMENTATION, GPU
from dspine_jax.planning.memory import state_parts, weight_parts
from dspine_jax.planning.pair import AbstractPair, positions, slots
from dspine_jax.planning.presets import fingerprint
from dspine_jax.planning.programs import ProgramFacts
from dspine_jax.planning.traffic import Pass, cycle, plain_step
from dspine_jax.versions import versions

LABELS = {
    "target": "target weights",
    "drafter": "drafter weights",
    "codebook": "token codebook",
    "fp8_head": "FP8 head",
    "tail_tables": "tail tables",
    "target_kv": "target keys and values",
    "gdn_states": "GDN states",
    "gdn_records": "GDN records",
    "conv_windows": "convolution windows",
    "draft_rings": "draft rings",
    "loop": "tokens, counters, page table",
    "target_weights": "target weights",
    "drafter_weights": "drafter weights",
    "retrieval_head": "retrieval head",
    "head_rows": "head rows of candidates",
    "code_rows": "codes of candidates",
    "embedding_rows": "embedding rows",
    "logits": "target logits, FP32",
}
GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Request:
    """What was asked for."""

    target: str
    draft: str
    slots: int
    context: int
    chunk: int


@dataclasses.dataclass(frozen=True)
class Plan:
    """Everything that a plan says."""

    request: Request
    pair: AbstractPair
    gpu: GPU
    capacity: Capacity
    programs: tuple[ProgramFacts, ...]
    compile_wall_seconds: float
    kernels: str | None
    frontier: list[tuple[int, int | None]] | None

    @property
    def need(self) -> Need:
        """Bytes at the size that was asked for."""
        return self.capacity.need(self.request.slots, self.request.context)

    @property
    def memory_share(self) -> float:
        """The least share of the GPU that XLA must be given, in hundredths."""
        return math.ceil(100 * (self.need.program / self.gpu.memory_bytes + FRAGMENTATION)) / 100

    def as_json(self) -> dict[str, Any]:
        """The object that this module's docstring describes."""
        asked, need, pair, gpu = self.request, self.need, self.pair, self.gpu
        state = pair.state(asked.slots, asked.context)
        answer: dict[str, Any] = {
            "gpu": {
                "name": gpu.name,
                "model": gpu.model,
                "memory_bytes": gpu.memory_bytes,
                "bandwidth_bytes_per_second": gpu.bandwidth,
                "peak_operations_per_second": gpu.peak,
            },
            "pair": {
                "target": asked.target,
                "draft": asked.draft,
                "target_hash": fingerprint(pair.target_config),
                "draft_hash": fingerprint(pair.drafter_config),
                "dtype": str(pair.dtype),
                "retrieval": pair.plan.options.retrieval,
                "tail": pair.plan.options.tail,
            },
            "request": {
                "slots": asked.slots,
                "context": asked.context,
                "chunk": asked.chunk,
                "allocated_slots": slots(state),
                "positions_per_slot": positions(state),
            },
            "memory": {
                "weights": weight_parts(pair),
                "state": state_parts(state),
                "temporaries": need.temporaries if self.programs else None,
                "prefix_cache": need.prefix_cache,
                "reserve": need.reserve,
                "total": need.program + need.reserve,
                "headroom": need.headroom,
            },
            "fits": need.fits,
            "limits": {
                "largest_context": self.capacity.largest_context(asked.slots),
                "most_slots": self.capacity.most_slots(asked.context),
            },
            "memory_share": self.memory_share,
            "cycle": _pass_json(cycle(pair, slots(state), asked.context), gpu),
            "plain_step": _pass_json(plain_step(pair, slots(state), asked.context), gpu),
            "programs": [dataclasses.asdict(program) for program in self.programs],
            "compile_wall_seconds": self.compile_wall_seconds,
            "kernels": self.kernels,
        }
        if self.frontier is not None:
            answer["frontier"] = [{"slots": count, "largest_context": context} for count, context in self.frontier]
        return answer | {"versions": versions()}


def text(plan: Plan) -> str:
    """The plan for people."""
    facts = plan.as_json()
    return "\n\n".join(
        section
        for section in (
            _heading(facts),
            _memory(plan, facts),
            _verdict(plan, facts),
            _floors(facts),
            _programs(facts),
            frontier_table(plan.frontier) if plan.frontier is not None else "",
        )
        if section
    )


def frontier_table(frontier: list[tuple[int, int | None]]) -> str:
    """Slots against the largest context that fits."""
    lines = [f"{'slots':>7}{'largest context':>18}"]
    lines += [f"{count:>7}{'nothing fits' if context is None else context:>18}" for count, context in frontier]
    return "\n".join(lines)


def _pass_json(one: Pass, gpu: GPU) -> dict[str, Any]:
    return {
        "parts": one.parts,
        "bytes": one.bytes,
        "operations": one.operations,
        "memory_seconds": one.bytes / gpu.bandwidth,
        "arithmetic_seconds": one.arithmetic_seconds(gpu),
        "seconds": one.seconds(gpu),
    }


def _heading(facts: dict[str, Any]) -> str:
    pair, request, gpu = facts["pair"], facts["request"], facts["gpu"]
    return (
        f"{pair['target']} with {pair['draft']}, {pair['dtype']}, greedy, on {gpu['model']}\n"
        f"{request['slots']} slots of {request['context']} tokens; allocated: {request['allocated_slots']} slots of"
        f" {request['positions_per_slot']} positions (both rounded up to powers of two, a block of slack included)"
    )


def _memory(plan: Plan, facts: dict[str, Any]) -> str:
    memory = facts["memory"]
    rows = [(LABELS[part], size) for part, size in (memory["weights"] | memory["state"]).items() if size]
    if memory["temporaries"] is not None:
        rows.append(("compiled programs' temporaries", memory["temporaries"]))
    if memory["prefix_cache"]:
        rows.append(("prefixes of earlier prompts", memory["prefix_cache"]))
    rows += [
        (f"reserve: 1 GiB for CUDA, {FRAGMENTATION:.0%} for gaps", memory["reserve"]),
        ("total", memory["total"]),
        ("device", plan.gpu.memory_bytes),
        ("headroom", memory["headroom"]),
    ]
    return "\n".join([f"{'memory':<40}{'GiB':>10}", *(f"{label:<40}{size / GIB:>10.3f}" for label, size in rows)])


def _verdict(plan: Plan, facts: dict[str, Any]) -> str:
    request, limits = facts["request"], facts["limits"]
    lines = ["It fits." if facts["fits"] else "IT DOES NOT FIT."]
    if not plan.programs:
        lines[0] += " The programs were not compiled: their temporaries are left out."
    largest, most = limits["largest_context"], limits["most_slots"]
    lines.append(f"largest context for {request['slots']} slots: {'none' if largest is None else f'{largest} tokens'}")
    lines.append(f"most slots for {request['context']} tokens: {'none' if most is None else most}")
    smaller = request["positions_per_slot"] // 2 - plan.pair.block
    if request["context"] - smaller <= 2 * plan.pair.block:
        lines.append(f"{smaller} tokens would need only half the positions")
    if facts["fits"] and plan.memory_share > DEFAULT_SHARE:
        lines.append(
            f"Run with XLA_CLIENT_MEM_FRACTION={plan.memory_share:.2f} or more: without it JAX uses"
            f" {DEFAULT_SHARE:.0%} of the memory."
        )
    return "\n".join(lines)


def _floors(facts: dict[str, Any]) -> str:
    gpu, one, plain = facts["gpu"], facts["cycle"], facts["plain_step"]
    bandwidth = gpu["bandwidth_bytes_per_second"]
    lines = [f"{'one cycle, all slots at full context':<40}{'GB':>10}{f'ms at {bandwidth / 1e12:.2f} TB/s':>18}"]
    rows = [(LABELS[part], size) for part, size in one["parts"].items() if size]
    rows += [("all bytes of a cycle", one["bytes"]), ("all bytes of a plain step", plain["bytes"])]
    lines += [f"{label:<40}{size / 1e9:>10.3f}{size / bandwidth * 1e3:>18.3f}" for label, size in rows]
    for label, each in (("cycle", one), ("plain step", plain)):
        if each["arithmetic_seconds"] is not None:
            tera = f"{each['operations'] / 1e12:.2f} TFLOP"
            lines.append(f"{f'arithmetic of a {label}':<34}{tera:>16}{each['arithmetic_seconds'] * 1e3:>18.3f}")
    slots = facts["request"]["slots"]
    lines.append(
        f"floor: {one['seconds'] * 1e3:.2f} ms a cycle, {plain['seconds'] * 1e3:.2f} ms a plain step, ratio"
        f" {one['seconds'] / plain['seconds']:.3f}; {slots} slots get at most {slots / one['seconds']:.0f} tokens/s for"
        " each token that a cycle emits on average"
    )
    return "\n".join(lines)


def _programs(facts: dict[str, Any]) -> str:
    if not facts["programs"]:
        return ""
    lines = [
        f"{'program':<20}{'temporaries GiB':>16}{'new outputs GiB':>17}{'kernels':>9}{'trace s':>9}{'compile s':>11}"
    ]
    lines += [
        f"{p['name']:<20}{p['temporary_bytes'] / GIB:>16.3f}{p['new_output_bytes'] / GIB:>17.3f}"
        f"{p['mosaic_kernels']:>9}{p['lower_seconds']:>9.1f}{p['compile_seconds']:>11.1f}"
        for p in facts["programs"]
    ]
    lines.append(
        f"compiled for {facts['gpu']['model']} without one, side by side in {facts['compile_wall_seconds']:.0f} s"
    )
    if not any(program["mosaic_kernels"] for program in facts["programs"]):
        reason = f": {facts['kernels']}" if facts["kernels"] else ""
        lines.append(f"every operation is XLA's form, none a GPU kernel of this project{reason}")
    return "\n".join(lines)
