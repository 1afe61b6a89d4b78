"""Finding the bridge's tensors in a drafter whose exporter named them its own way.

Backbone names are settled by the name table. For the bridge, a tensor is proposed for a parameter when its
name holds a known word for it, or, for the parameters whose shape is unique, when its shape fits. Names win
over shapes. The three [M, C] projections have one shape, so only a name (or `--map`) can tell them apart.
"""

import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

Shape = tuple[int, ...]

PREFIX = "injection."

WORDS: dict[str, frozenset[str]] = {
    "readouts": frozenset({"readouts", "readout", "reads", "read", "read_proj"}),
    "writes": frozenset({"writes", "write", "write_proj", "writeouts", "writeout"}),
    "codebook": frozenset({"codebook", "token_codebook", "code_table", "code_embedding"}),
    "receiver_gate": frozenset({"receiver_gate", "gate_receiver", "receiver_gate_proj"}),
    "predecessor_gate": frozenset({"predecessor_gate", "gate_predecessor", "predecessor_gate_proj"}),
    "message": frozenset({"message", "message_proj", "predecessor_value", "predecessor_message"}),
    "gate_bias": frozenset({"gate_bias"}),
}
"""Kind of bridge parameter -> words that stand for it as the last dotted component of a tensor's name."""

_BACKBONE = re.compile(r"(^|\.)(self_attn|mlp|fc|\w*norm\w*)\.")
"""A component that belongs to the backbone: a tensor below it is never proposed by shape."""


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """Tensors that could fill one bridge parameter. `how` is "alias" or "shape"."""

    tensors: tuple[str, ...]
    how: str


def is_bridge(parameter: str) -> bool:
    return parameter.startswith(PREFIX)


def propose(
    parameters: Mapping[str, Shape], missing: Collection[str], tensors: Mapping[str, Shape]
) -> dict[str, Proposal]:
    """For each bridge parameter that is missing, the leftover tensors that could fill it; none, one or
    several.

    `parameters` are all parameters of the bridge. A name that speaks of a parameter proposes its tensor
    whatever its shape, so that a wrong shape is reported as such. Shapes propose only tensors whose names
    say nothing.
    """
    kinds = {name: _kind(name) for name in tensors}
    unique = _unique_shapes(parameters)
    found: dict[str, Proposal] = {}
    for parameter in missing:
        kind, layer = _kind_and_layer(parameter)
        same_layer = [name for name in tensors if layer is None or _layer(name) == layer]
        by_name = tuple(name for name in same_layer if kinds[name] == kind)
        by_shape = tuple(
            name
            for name in same_layer
            if kind in unique
            and kinds[name] is None
            and tensors[name] == parameters[parameter]
            and not _BACKBONE.search(name)
        )
        found[parameter] = Proposal(tensors=by_name or by_shape, how="alias" if by_name else "shape")
    return found


def _kind_and_layer(parameter: str) -> tuple[str, int | None]:
    parts = parameter.removeprefix(PREFIX).split(".")
    return parts[0], int(parts[1]) if len(parts) > 1 and parts[1].isdigit() else None


def _kind(tensor: str) -> str | None:
    """The kind that a name speaks of: by its last component that is neither a number nor `weight`."""
    parts = [part for part in tensor.split(".") if part != "weight" and not part.isdigit()]
    return next((kind for kind, words in WORDS.items() if parts and parts[-1] in words), None)


def _layer(tensor: str) -> int | None:
    """The layer number in a tensor's name, where exactly one number stands there."""
    numbers = re.findall(r"(?:^|\.)(\d+)(?=\.|$)", tensor)
    return int(numbers[0]) if len(numbers) == 1 else None


def _unique_shapes(parameters: Mapping[str, Shape]) -> set[str]:
    """Kinds whose shape no other kind has, in this configuration."""
    shapes = {_kind_and_layer(parameter)[0]: shape for parameter, shape in parameters.items()}
    counts = Counter(shapes.values())
    return {kind for kind, shape in shapes.items() if counts[shape] == 1}
