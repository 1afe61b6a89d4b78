"""Resolution of a checkpoint against a model: every tensor used once or ignored for a reason, every
parameter filled once, and all faults in one report."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from dspine_jax.config import BlockFp8
from dspine_jax.hf import bridge
from dspine_jax.hf.names import DEQUANTIZE_BLOCK, SQUEEZE_CONV, Ignored, NameTable
from dspine_jax.hf.tensor_file import TensorInfo

SCALE_SUFFIX = "_scale_inv"
FLOATS = ("BF16", "F16", "F32")
FP8 = "F8_E4M3"


class Leaf(Protocol):
    """What a parameter wants; `jax.ShapeDtypeStruct` has this form."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype: ...


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One parameter and what fills it. `how` is "name", "alias", "shape" or "map"."""

    parameter: str
    shape: tuple[int, ...]
    dtype: np.dtype
    tensor: str
    source: TensorInfo
    transform: str
    how: str
    scale: str | None = None
    block: tuple[int, int] | None = None

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The whole resolution of one checkpoint. `ignored` maps tensor to reason."""

    model: str
    entries: tuple[Entry, ...]
    ignored: dict[str, str]
    faults: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def nbytes(self) -> int:
        return sum(entry.nbytes for entry in self.entries)


def report(model: str, where: str, faults: Sequence[str]) -> str:
    """All faults of one checkpoint as one message."""
    count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
    return f"{model} checkpoint {where}: {count}" + "".join(f"\n  - {fault}" for fault in faults)


def resolve(
    table: NameTable,
    parameters: Mapping[str, Leaf],
    tensors: Mapping[str, TensorInfo],
    *,
    broken: Mapping[str, str] | None = None,
    overrides: Mapping[str, str] | None = None,
    fp8: BlockFp8 | None = None,
    ignored: Sequence[Ignored] = (),
) -> Plan:
    """Match `tensors` to `parameters`.

    Args:
        broken: tensors that cannot be read as announced -> what is wrong. A fault where the tensor is
            needed, a
            warning in an ignored family.
        overrides: parameter -> tensor; wins over every rule.
        fp8: the declared quantisation, or None; without it FP8 tensors are faults.
        ignored: families to ignore beside the table's own.
    """
    work = _Resolution(table, parameters, tensors, tuple(ignored))
    work.apply_overrides(overrides or {})
    work.match_names()
    work.note_broken(broken or {})
    work.match_bridge()
    work.report_unknown()
    entries = tuple(entry for parameter in parameters if (entry := work.entry(parameter, fp8)) is not None)
    work.report_scales()
    return Plan(
        model=table.model,
        entries=entries,
        ignored=work.ignored,
        faults=tuple(work.faults),
        warnings=tuple(work.warnings),
    )


@dataclass
class _Resolution:
    """The resolution while it is being made."""

    table: NameTable
    parameters: Mapping[str, Leaf]
    tensors: Mapping[str, TensorInfo]
    extra_ignored: tuple[Ignored, ...]
    filled: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    """parameter -> (tensor, how), more than one being a fault"""
    excused: set[str] = field(default_factory=set)
    """parameters that another fault already explains"""
    leftover: list[str] = field(default_factory=list)
    scales: list[str] = field(default_factory=list)
    ignored: dict[str, str] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def apply_overrides(self, overrides: Mapping[str, str]) -> None:
        users: dict[str, str] = {}
        for parameter, tensor in overrides.items():
            if parameter not in self.parameters:
                self.faults.append(f"--map {parameter}={tensor}: the {self.table.model} has no such parameter")
            elif tensor not in self.tensors:
                self.excused.add(parameter)
                self.faults.append(f"--map {parameter}={tensor}: the checkpoint has no such tensor")
            elif tensor in users:
                self.excused.add(parameter)
                self.faults.append(f"--map {parameter}={tensor}: that tensor is mapped to {users[tensor]} already")
            else:
                users[tensor] = parameter
                self.filled[parameter] = [(tensor, "map")]

    def match_names(self) -> None:
        mapped = {tensor for matches in self.filled.values() for tensor, _ in matches}
        for tensor in self.tensors:
            if tensor in mapped:
                continue
            parameter = self.table.parameter(tensor)
            if parameter in self.parameters:
                how = "name" if tensor.endswith(parameter) else "alias"
                self.filled.setdefault(parameter, []).append((tensor, how))
            elif (reason := self._ignored_reason(tensor)) is not None:
                self.ignored[tensor] = reason
            elif tensor.endswith(SCALE_SUFFIX):
                self.scales.append(tensor)
            else:
                self.leftover.append(tensor)

    def note_broken(self, broken: Mapping[str, str]) -> None:
        for tensor, what in broken.items():
            reason = self._ignored_reason(tensor)
            parameter = self.table.parameter(tensor)
            if reason is not None and parameter not in self.parameters:
                self.warnings.append(f"{tensor}: {what}; harmless, since {reason}")
                continue
            self.faults.append(f"{tensor}: {what}; download the checkpoint again")
            self.excused.add(parameter)
            # A weight whose scale is announced and unreadable needs no second fault about that scale.
            self.excused.add(tensor)

    def match_bridge(self) -> None:
        shapes = {name: tuple(leaf.shape) for name, leaf in self.parameters.items() if bridge.is_bridge(name)}
        missing = [name for name in shapes if name not in self.filled and name not in self.excused]
        proposals = bridge.propose(shapes, missing, {name: self.tensors[name].shape for name in self.leftover})
        for parameter, proposal in proposals.items():
            if len(proposal.tensors) == 1:
                self.filled[parameter] = [(proposal.tensors[0], proposal.how)]
            elif proposal.tensors:
                self.excused.add(parameter)
                self.faults.append(
                    f"{parameter} {list(shapes[parameter])} is ambiguous: {self._listing(proposal.tensors)} "
                    f"could fill it; choose with --map {parameter}=NAME"
                )
        proposed = {name for proposal in proposals.values() for name in proposal.tensors}
        self.leftover = [name for name in self.leftover if name not in proposed]

    def report_unknown(self) -> None:
        self.faults += [
            f"unknown tensor {name} {self._form(name)}: no parameter takes it and no rule ignores it"
            for name in self.leftover
        ]

    def entry(self, parameter: str, fp8: BlockFp8 | None) -> Entry | None:
        """The checked entry of one parameter, or None after noting why there is none."""
        matches = self.filled.get(parameter, [])
        if not matches:
            if parameter not in self.excused:
                self.faults.append(self._unfilled(parameter))
            return None
        if len(matches) > 1:
            names = [tensor for tensor, _ in matches]
            self.faults.append(f"{parameter} is filled twice: {self._listing(names)} mean the same parameter")
            return None
        tensor, how = matches[0]
        leaf, info, row = self.parameters[parameter], self.tensors[tensor], self.table.row(parameter)
        faults_before = len(self.faults)
        shape = tuple(leaf.shape)
        wanted = (shape[0], 1, *shape[1:]) if row.transform == SQUEEZE_CONV else shape
        if info.shape != wanted:
            self.faults.append(
                f"{parameter}: tensor {tensor} has shape {list(info.shape)}, the config wants {list(wanted)}"
            )
        transform, scale = row.transform, None
        if info.dtype == FP8:
            transform, scale = DEQUANTIZE_BLOCK, self._scale(parameter, tensor, row.fp8, fp8)
        elif info.dtype not in FLOATS:
            self.faults.append(
                f"{parameter}: tensor {tensor} is {info.dtype}; weights are read from {', '.join(FLOATS)}, "
                f"or from block-scaled {FP8} where the model allows it"
            )
        if len(self.faults) > faults_before:
            return None
        return Entry(
            parameter=parameter,
            shape=shape,
            dtype=np.dtype(leaf.dtype),
            tensor=tensor,
            source=info,
            transform=transform,
            how=how,
            scale=scale,
            block=fp8.block_size if fp8 is not None and scale is not None else None,
        )

    def report_scales(self) -> None:
        self.faults += [
            f"unexpected scale {name} {self._form(name)}: there is no {FP8} tensor "
            f"{name.removesuffix(SCALE_SUFFIX)} that needs it"
            for name in self.scales
        ]

    def _scale(self, parameter: str, tensor: str, allowed: bool, fp8: BlockFp8 | None) -> str | None:
        """The scale of an FP8 tensor, taken from the open scales; None after noting a fault."""
        name = tensor + SCALE_SUFFIX
        present = name in self.scales
        if present:
            self.scales.remove(name)
        if not allowed:
            self.faults.append(
                f"{parameter}: tensor {tensor} is {FP8}; this parameter of the {self.table.model} must be "
                f"unquantised ({', '.join(FLOATS)})"
            )
        elif fp8 is None:
            self.faults.append(
                f"{parameter}: tensor {tensor} is {FP8}, and config.json has no quantization_config with its "
                "weight_block_size"
            )
        elif not present and name not in self.excused:
            self.faults.append(f"{parameter}: tensor {tensor} is {FP8}, and its scale {name} is missing")
        elif present:
            return self._checked_scale(tensor, name, fp8.block_size)
        return None

    def _checked_scale(self, tensor: str, name: str, block: tuple[int, int]) -> str:
        info = self.tensors[name]
        wanted = tuple(-(-size // width) for size, width in zip(self.tensors[tensor].shape, block, strict=False))
        if info.shape != wanted:
            self.faults.append(
                f"{name} has shape {list(info.shape)}; {tensor} {list(self.tensors[tensor].shape)} in "
                f"blocks of {list(block)} wants {list(wanted)}"
            )
        if info.dtype not in FLOATS:
            self.faults.append(f"{name} is {info.dtype}; a scale is read from {', '.join(FLOATS)}")
        return name

    def _ignored_reason(self, tensor: str) -> str | None:
        extra = (rule.reason for rule in self.extra_ignored if rule.pattern.fullmatch(tensor))
        return next(extra, None) or self.table.ignored_reason(tensor)

    def _unfilled(self, parameter: str) -> str:
        shape = tuple(self.parameters[parameter].shape)
        message = f"missing: nothing fills {parameter} {list(shape)}"
        same = [name for name in self.leftover if self.tensors[name].shape == shape]
        if same:
            message += f"; {self._listing(same)} would fit: choose with --map {parameter}=NAME"
        return message

    def _form(self, tensor: str) -> str:
        info = self.tensors[tensor]
        return f"{info.dtype} {list(info.shape)}"

    def _listing(self, names: Sequence[str]) -> str:
        return ", ".join(f"{name} {self._form(name)}" for name in names)
