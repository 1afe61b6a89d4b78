"""Strict reading of `config.json` mappings: every key is used, refused, or listed as ignorable with a reason.

Faults are collected, so that one `ConfigError` names all of them. A value that is missing or malformed
becomes `ABSENT`; consistency rules that need it are then left out, so that one fault is reported once.
"""

import dataclasses
import inspect
import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any


class ConfigError(ValueError):
    """One or more faults of a configuration; `faults` holds one sentence for each."""

    def __init__(self, what: str, faults: Iterable[str]):
        self.faults = tuple(faults)
        plural = "fault" if len(self.faults) == 1 else "faults"
        super().__init__(f"{what}: {len(self.faults)} {plural}" + "".join(f"\n  - {fault}" for fault in self.faults))


class _Absent:
    def __repr__(self) -> str:
        return "ABSENT"


ABSENT = _Absent()
_REQUIRED = _Absent()


@dataclasses.dataclass(frozen=True)
class Kind:
    """What a value must be: a sentence for the error, a test, and the conversion of an accepted value."""

    wanted: str
    accepts: Callable[[Any], bool]
    convert: Callable[[Any], Any] = lambda value: value


def is_int(value: object) -> bool:
    """True for an int that is not a bool (JSON `true` is no number)."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    return is_int(value) or (isinstance(value, float) and math.isfinite(value))


def _is_list(value: object) -> bool:
    return isinstance(value, list | tuple)


POSITIVE_INT = Kind("a positive integer", lambda v: is_int(v) and v > 0)
TOKEN_ID = Kind("a token id (an integer, 0 or more)", lambda v: is_int(v) and v >= 0)
POSITIVE_NUMBER = Kind("a positive number", lambda v: is_number(v) and v > 0, float)
FRACTION = Kind("a number above 0 and at most 1", lambda v: is_number(v) and 0 < v <= 1, float)
BOOL = Kind("true or false", lambda v: isinstance(v, bool))
INT_LIST = Kind(
    "a non-empty list of integers, 0 or more",
    lambda v: _is_list(v) and len(v) > 0 and all(is_int(i) and i >= 0 for i in v),
    tuple,
)
TOKEN_IDS = Kind(
    "a token id, a list of token ids, or null",
    lambda v: v is None or all(is_int(i) and i >= 0 for i in (v if _is_list(v) else [v])),
    lambda v: () if v is None else tuple(v) if _is_list(v) else (v,),
)


def show(value: object) -> str:
    """A value as `config.json` spells it."""
    return json.dumps(value, default=repr)


def one_of(*names: str) -> Kind:
    return Kind("one of " + ", ".join(map(show, names)), lambda v: isinstance(v, str) and v in names)


def list_of(*names: str) -> Kind:
    wanted = "a non-empty list, each entry one of " + ", ".join(map(show, names))
    return Kind(
        wanted,
        lambda v: _is_list(v) and len(v) > 0 and all(isinstance(name, str) and name in names for name in v),
        tuple,
    )


def optional(kind: Kind) -> Kind:
    return Kind(
        f"{kind.wanted}, or null",
        lambda v: v is None or kind.accepts(v),
        lambda v: None if v is None else kind.convert(v),
    )


DTYPE = one_of("bfloat16", "float32", "float16")


class Source:
    """One mapping under reading; `close` reports the keys that nobody took."""

    def __init__(self, mapping: Mapping[str, Any], path: str = "", faults: list[str] | None = None):
        self._mapping = mapping
        self._path = path
        self._taken: set[str] = set()
        self.faults: list[str] = [] if faults is None else faults

    def name(self, key: str) -> str:
        return f"{self._path}.{key}" if self._path else key

    def has(self, key: str) -> bool:
        return key in self._mapping

    def skip(self, *keys: str) -> None:
        """Count keys as taken whose meaning hangs on a value that was refused."""
        self._taken.update(keys)

    def fault(self, key: str, text: str) -> None:
        self.faults.append(f"{self.name(key)}: {text}")

    def take(self, key: str, kind: Kind, default: Any = _REQUIRED) -> Any:
        """The converted value of `key`, `default` when it is missing, or ABSENT after recording a fault."""
        self._taken.add(key)
        if key not in self._mapping:
            if default is _REQUIRED:
                self.fault(key, f"missing; wanted {kind.wanted}. Add the key to the config.")
                return ABSENT
            return default
        value = self._mapping[key]
        if not kind.accepts(value):
            self.fault(key, f"got {show(value)}; wanted {kind.wanted}.")
            return ABSENT
        return kind.convert(value)

    def expect(self, key: str, *allowed: Any, why: str, required: bool = False) -> None:
        """Refuse every value of `key` but the allowed ones; a missing key passes unless it is required."""
        self._taken.add(key)
        if key not in self._mapping:
            if required:
                self.fault(key, f"missing; wanted {_alternatives(allowed)}. Add the key to the config.")
            return
        value = self._mapping[key]
        if not any(type(value) is type(a) and value == a for a in allowed):
            self.fault(key, f"got {show(value)}; wanted {_alternatives(allowed)}. {why}")

    def section(self, key: str) -> "Source | None":
        """The nested mapping at `key`, or None where it is missing or null."""
        self._taken.add(key)
        value = self._mapping.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            self.fault(key, f"got {show(value)}; wanted an object with named fields, or null.")
            return None
        return Source(value, self.name(key), self.faults)

    def close(self, ignorable: Mapping[str, str]) -> None:
        """Report every key that was neither taken nor is `ignorable` (key -> why it changes nothing)."""
        for key in sorted(self._mapping.keys() - self._taken - ignorable.keys()):
            self.fault(
                key,
                f"unknown key (value {show(self._mapping[key])}); it may change the model. "
                "Remove it if it has no effect on the forward pass; otherwise this model cannot be run here.",
            )


def agreed(places: Iterable[tuple[Source, str]], kind: Kind, *, default: Any = _REQUIRED) -> Any:
    """One value that may stand in several places, which must agree; null counts as not given."""
    places = list(places)
    given = [(source.name(key), source.take(key, optional(kind), default=None)) for source, key in places]
    found = [(name, value) for name, value in given if value is not None]
    source = places[0][0]
    if not found:
        if default is _REQUIRED:
            names = " or ".join(source.name(key) for source, key in places)
            source.faults.append(f"{names}: missing; wanted {kind.wanted}. Add the key to the config.")
            return ABSENT
        return default
    valid = [(name, value) for name, value in found if value is not ABSENT]
    if len(valid) < len(found):
        return ABSENT
    first_name, first = valid[0]
    for name, value in valid[1:]:
        if value != first:
            source.faults.append(
                f"{first_name} and {name} disagree: got {show(first)} and {show(value)}; wanted one value. "
                "Keep the one that the weights were trained with."
            )
            return ABSENT
    return first


def broken_rules(values: Mapping[str, Any], rules: Iterable[Callable[..., str | None]]) -> list[str]:
    """Apply each rule to the values that its parameters name; a rule with an absent operand is left out."""
    faults = []
    for rule in rules:
        names = list(inspect.signature(rule).parameters)
        if all(values.get(name, ABSENT) is not ABSENT for name in names):
            fault = rule(**{name: values[name] for name in names})
            if fault is not None:
                faults.append(fault)
    return faults


def check_fields(values: Mapping[str, Any], kinds: Mapping[str, Kind]) -> list[str]:
    """Faults of already converted values, for a config that was built directly."""
    return [
        f"{name}: got {show(values[name])}; wanted {kind.wanted}."
        for name, kind in kinds.items()
        if not kind.accepts(values[name])
    ]


def _alternatives(allowed: Iterable[Any]) -> str:
    return " or ".join(show(value) for value in allowed)
