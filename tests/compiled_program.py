"""What an optimised XLA program launches, moves and aliases: a reader of its text."""

import dataclasses
import functools
import math
import re

# Instructions that cost no kernel: names, views, and control flow, whose bodies are counted instead.
FREE = {
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id", "replica-id"),
    *("while", "conditional", "call", "async-start", "async-update", "async-done", "copy-done"),
}
# A kernel made of nothing else changes no value: it moves its operand.
MOVING = {"copy", "copy-start", "transpose", "convert", "bitcast", "reshape", "slice", "concatenate", "pad", "tuple"}
OPERANDS = {"parameter", "constant", "get-tuple-element"}

_BITS = {"pred": 8, "bf16": 16}
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%([\w.-]+) = (\(.*?\)|\S+) ([a-z][\w-]*)\((.*)$")
_COMPUTATION = re.compile(r"^(ENTRY )?%([\w.-]+) \(.*\{$")
_SHAPE = re.compile(r"\b([a-z]+\d*\w*)\[([\d,]*)\]")
_CALLED = re.compile(r"\b(?:calls|body|to_apply|true_computation|false_computation)=%([\w.-]+)")
_BRANCHES = re.compile(r"\bbranch_computations=\{([^}]*)\}")


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of the program."""

    name: str
    result: str  # type, such as "bf16[8,16,5120]{2,1,0}"
    opcode: str
    rest: str  # operands, attributes and metadata

    @property
    def shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        """(element type, dimensions) of each result."""
        found = _SHAPE.findall(self.result)
        return [(kind, tuple(int(size) for size in dims.split(",") if size)) for kind, dims in found]

    @property
    def bytes(self) -> int:
        """Size of the results."""
        return sum(_bits(kind) * math.prod(dims) // 8 for kind, dims in self.shapes)

    @property
    def called(self) -> list[str]:
        """Computations that this instruction runs."""
        branches = [name.strip(" %") for group in _BRANCHES.findall(self.rest) for name in group.split(",")]
        return _CALLED.findall(self.rest) + branches

    @property
    def trips(self) -> int:
        """How often a loop's body runs, where that is known; else once."""
        found = re.search(r'"known_trip_count":\{"n":"(\d+)"', self.rest)
        return int(found.group(1)) if found else 1


@dataclasses.dataclass(frozen=True, eq=False)
class CompiledProgram:
    """The text of an optimised and scheduled module."""

    text: str

    @functools.cached_property
    def computations(self) -> dict[str, list[Instruction]]:
        """Computation -> its instructions, the entry under "ENTRY"."""
        found: dict[str, list[Instruction]] = {}
        current: list[Instruction] = []
        for line in self.text.splitlines():
            if head := _COMPUTATION.match(line):
                current = found.setdefault("ENTRY" if head.group(1) else head.group(2), [])
            elif one := _INSTRUCTION.match(line):
                current.append(Instruction(*one.groups()))
        return found

    @functools.cached_property
    def launches(self) -> list[tuple[Instruction, int]]:
        """Every kernel (or copy) that a run launches, and how often."""
        return list(self._launches("ENTRY", 1))

    @property
    def launch_count(self) -> int:
        """Kernels and copies of one run."""
        return sum(times for _, times in self.launches)

    @property
    def aliases(self) -> dict[int, int]:
        """Result -> parameter whose memory it takes."""
        header = self.text[: self.text.index("\n")]
        return {int(result): int(parameter) for result, parameter in re.findall(r"\{(\d+)\}: \((\d+),", header)}

    def passing_bytes(self, instruction: Instruction) -> int:
        """Size of those results that are none of the program's: what the instruction leaves for others to read."""
        sizes = [_bits(kind) * math.prod(dims) // 8 for kind, dims in instruction.shapes]
        kept = {index for name, index in self._kept if name == instruction.name}
        return 0 if None in kept else sum(size for index, size in enumerate(sizes) if index not in kept)

    def inside(self, instruction: Instruction) -> list[Instruction]:
        """The instructions of a fusion; of anything else, itself."""
        if instruction.opcode != "fusion":
            return [instruction]
        return [one for name in instruction.called for one in self.computations[name]]

    def only_moves(self, instruction: Instruction) -> bool:
        """Whether a launched kernel computes nothing: a copy, a transposition, a change of type, or several."""
        opcodes = {one.opcode for one in self.inside(instruction)} - OPERANDS
        return bool(opcodes) and opcodes <= MOVING

    def where(self, instruction: Instruction) -> str:
        """The instruction and the line of source that it came from."""
        for one in (instruction, *reversed(self.inside(instruction))):
            name = re.search(r'op_name="([^"]*)"', one.rest)
            frame = re.search(r"stack_frame_id=(\d+)", one.rest)
            if name or frame:
                place = self._frames.get(int(frame.group(1)), "") if frame else ""
                what = name.group(1) if name else ""
                return (
                    f"%{instruction.name} = {instruction.result} {instruction.opcode}, {what} at {place or 'unknown'}"
                )
        return f"%{instruction.name} = {instruction.result} {instruction.opcode}({instruction.rest[:80]}"

    @functools.cached_property
    def _kept(self) -> set[tuple[str, int | None]]:
        """(instruction, which of its results) of everything that the entry returns."""
        entry = self.computations["ENTRY"]
        named = {one.name: one for one in entry}
        kept: set[tuple[str, int | None]] = set()
        for name in _operands(entry[-1]) if entry[-1].opcode == "tuple" else [entry[-1].name]:
            index = None
            while named[name].opcode in ("bitcast", "get-tuple-element"):
                element = re.search(r"\bindex=(\d+)", named[name].rest)
                index = int(element.group(1)) if element else index
                (name,) = _operands(named[name])
            kept.add((name, index))
        return kept

    def _launches(self, computation, times):
        for one in self.computations[computation]:
            if one.opcode in ("while", "conditional", "call", "async-start"):
                for name in one.called:
                    yield from self._launches(name, times * one.trips)
            elif one.opcode not in FREE:
                yield one, times

    @functools.cached_property
    def _frames(self) -> dict[int, str]:
        """Stack frame -> file:line of its innermost call."""
        files = {int(n): name for n, name in re.findall(r'^(\d+) "([^"]*\.py)"$', self.text, re.MULTILINE)}
        places = {
            int(n): f"{files.get(int(file), '?')}:{line}"
            for n, file, line in re.findall(r"^(\d+) \{file_name_id=(\d+) .*?\bline=(\d+)", self.text, re.MULTILINE)
        }
        frames = re.findall(r"^(\d+) \{file_location_id=(\d+)", self.text, re.MULTILINE)
        return {int(n): places.get(int(place), "?") for n, place in frames}


def _operands(instruction: Instruction) -> list[str]:
    return re.findall(r"%([\w.-]+)", instruction.rest.partition(")")[0])


def _bits(kind: str) -> int:
    if kind in _BITS:
        return _BITS[kind]
    width = re.match(r"[a-z]+(\d+)", kind)
    return int(width.group(1)) if width else 0
