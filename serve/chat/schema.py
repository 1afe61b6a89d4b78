"""Which types a tool's JSON schema gives to its parameters."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Self

REFERENCE_LIMIT = 8


@dataclasses.dataclass(frozen=True)
class ParameterType:
    """`kind` is "string", "integer", "number", "boolean", "json" (object, array) or "any"."""

    kind: str = "string"
    nullable: bool = False


UNKNOWN = ParameterType()


@dataclasses.dataclass(frozen=True)
class Tool:
    """What is known of a function: the types of its parameters, by name."""

    parameters: Mapping[str, ParameterType]

    @classmethod
    def read(cls, tool: Mapping[str, Any]) -> tuple[str, Self] | None:
        """Name and parameters of a tool in OpenAI's form; None for what is no function with a name."""
        function = tool.get("function")
        if not isinstance(function, Mapping) or not isinstance(name := function.get("name"), str):
            return None
        root = function.get("parameters")
        root = root if isinstance(root, Mapping) else {}
        properties = root.get("properties")
        properties = properties if isinstance(properties, Mapping) else {}
        return name, cls({key: type_of(value, root) for key, value in properties.items()})

    def type_of(self, key: str) -> ParameterType:
        """The parameter's type; a parameter that the schema does not have is a string."""
        return self.parameters.get(key, UNKNOWN)


def read_tools(tools: Sequence[Mapping[str, Any]]) -> dict[str, Tool]:
    """The functions by name."""
    return dict(found for tool in tools if (found := Tool.read(tool)) is not None)


def type_of(schema: Any, root: Mapping[str, Any]) -> ParameterType:
    """The type that values of a schema have; `root` holds the definitions that "$ref" may name."""
    names = _names(schema, root, REFERENCE_LIMIT)
    kinds = list(dict.fromkeys(_kind(name) for name in names if name != "null"))
    nullable = "null" in names
    if len(kinds) > 1:
        # A string is never wrong where one is allowed, and any other reading of it may be.
        return ParameterType("string" if "string" in kinds else kinds[0], nullable)
    return ParameterType(kinds[0] if kinds else "any" if nullable else "string", nullable)


def _names(schema: Any, root: Mapping[str, Any], depth: int) -> list[str]:
    """The type names that a schema allows, in its order."""
    if not isinstance(schema, Mapping) or depth == 0:
        return []
    if isinstance(reference := schema.get("$ref"), str):
        return _names(_resolve(reference, root), root, depth - 1)
    declared = schema.get("type")
    if isinstance(declared, str):
        names = [declared]
    elif isinstance(declared, Sequence):
        names = [name for name in declared if isinstance(name, str)]
    else:
        names = _undeclared(schema, root, depth)
    return [*names, "null"] if schema.get("nullable") is True else names


def _undeclared(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> list[str]:
    for key in ("anyOf", "oneOf", "allOf"):
        if isinstance(choices := schema.get(key), Sequence) and not isinstance(choices, str):
            return [name for choice in choices for name in _names(choice, root, depth - 1)]
    if "const" in schema:
        return [_name_of(schema["const"])]
    if isinstance(values := schema.get("enum"), Sequence) and not isinstance(values, str):
        return [_name_of(value) for value in values]
    if "properties" in schema:
        return ["object"]
    return ["array"] if "items" in schema else []


def _resolve(reference: str, root: Mapping[str, Any]) -> Any:
    found: Any = root
    for part in reference.removeprefix("#").strip("/").split("/"):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _name_of(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    names = {type(None): "null", str: "string", int: "integer", float: "number", dict: "object", list: "array"}
    return names.get(type(value), "any")


def _kind(name: str) -> str:
    """Schemas of tools use the names of JSON schema and, often, those of programming languages."""
    lower = name.strip().lower()
    if lower in ("string", "str", "text", "varchar", "char", "enum"):
        return "string"
    for kind, prefixes in (
        ("integer", ("int", "uint", "long", "short", "unsigned")),
        ("number", ("num", "float", "double", "decimal")),
        ("boolean", ("bool",)),
        ("json", ("object", "array", "dict", "list", "map")),
    ):
        if lower.startswith(prefixes):
            return kind
    return "any"
