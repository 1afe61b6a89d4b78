"""Values of parameters: the type is the schema's, and nothing is lost where a value does not have it."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.chat.schema import ParameterType, Tool, type_of
from serve.chat.values import converted, json_text, string_text
from tests.chat_texts import STEADY

STRING, ANY, JSON = ParameterType(), ParameterType("any"), ParameterType("json")
INTEGER, NUMBER, BOOLEAN = ParameterType("integer"), ParameterType("number"), ParameterType("boolean")


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (STRING, "1", "1"),
        (STRING, "null", "null"),
        (STRING, "\n\n a \n\n", "\n a \n"),
        (STRING, "\n", ""),
        (ParameterType("string", nullable=True), "\nNULL\n", None),
        (ParameterType("string", nullable=True), "nullify", "nullify"),
        (INTEGER, "\n 12\n", 12),
        (INTEGER, "-3", -3),
        (INTEGER, "1.0", "1.0"),
        (INTEGER, "1_000", "1_000"),
        (INTEGER, "9" * 5000, "9" * 5000),
        (INTEGER, "None", "None"),
        (INTEGER, "Null", None),
        (NUMBER, "2", 2),
        (NUMBER, "2.0", 2.0),
        (NUMBER, "-1e-3", -1e-3),
        (NUMBER, ".5", 0.5),
        (NUMBER, "1e999", "1e999"),
        (NUMBER, "nan", "nan"),
        (BOOLEAN, "True", True),
        (BOOLEAN, "false", False),
        (BOOLEAN, "yes", "yes"),
        (JSON, '{"a": [1, null, true]}', {"a": [1, None, True]}),
        (JSON, "{'a': (1, None, True)}", {"a": [1, None, True]}),
        (JSON, '["\\ud83d", "é"]', ["\ud83d", "é"]),
        (JSON, "[NaN]", "[NaN]"),
        (JSON, "{1: 2}", "{1: 2}"),
        (JSON, "{1, 2}", "{1, 2}"),
        (JSON, "b'x'", "b'x'"),
        (JSON, "['\\d']", "['\\d']"),
        (JSON, "[" * 9000, "[" * 9000),
        (JSON, "-" * 9000 + "1", "-" * 9000 + "1"),
        (JSON, "not json", "not json"),
        (JSON, "__import__('os')", "__import__('os')"),
        (ANY, "12", 12),
        (ANY, "twelve", "twelve"),
        (ANY, "", ""),
    ],
)
def test_known_values(kind, text, value):
    got = json.loads(converted(text, kind))
    assert got == value and type(got) is type(value)


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({"type": "string"}, STRING),
        ({"type": "str"}, STRING),
        ({"type": "int64"}, INTEGER),
        ({"type": "unsigned int"}, INTEGER),
        ({"type": "float"}, NUMBER),
        ({"type": "Boolean"}, BOOLEAN),
        ({"type": "object"}, JSON),
        ({"type": "list[int]"}, JSON),
        ({"type": "mystery"}, ANY),
        ({"type": "null"}, ParameterType("any", nullable=True)),
        ({"type": ["null", "integer"]}, ParameterType("integer", nullable=True)),
        ({"type": "integer", "nullable": True}, ParameterType("integer", nullable=True)),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, ParameterType("string", nullable=True)),
        ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, STRING),
        ({"anyOf": [{"type": "integer"}, {"type": "array"}]}, INTEGER),
        ({"allOf": [{"$ref": "#/$defs/Point"}]}, JSON),
        ({"$ref": "#/$defs/Level"}, INTEGER),
        ({"$ref": "#/$defs/Loop"}, STRING),
        ({"$ref": "#/$defs/Missing"}, STRING),
        ({"enum": ["a", "b"]}, STRING),
        ({"enum": [1, 2]}, INTEGER),
        ({"enum": [1.5, None]}, ParameterType("number", nullable=True)),
        ({"const": True}, BOOLEAN),
        ({"items": {}}, JSON),
        ({"properties": {}}, JSON),
        ({}, STRING),
        (True, STRING),
        ({"type": 5, "enum": "x", "anyOf": "x"}, STRING),
    ],
)
def test_the_type_of_a_schema(schema, kind):
    definitions = {"Point": {"type": "object"}, "Level": {"enum": [1, 2]}, "Loop": {"$ref": "#/$defs/Loop"}}
    assert type_of(schema, {"$defs": definitions}) == kind


@pytest.mark.parametrize("function", [None, {}, {"name": 3}])
def test_what_is_no_function_has_no_parameters(function):
    assert Tool.read({"function": function}) is None


@pytest.mark.parametrize("parameters", [None, "x", {"properties": []}])
def test_a_function_without_properties_takes_strings(parameters):
    found = Tool.read({"function": {"name": "f", "parameters": parameters}})
    assert found and found[0] == "f" and found[1].type_of("anything") == STRING


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=4,
)


@STEADY
@given(VALUES)
def test_json_of_a_value_is_the_value(value):
    assert json.loads(converted(json_text(value), ANY)) == value


@STEADY
@given(st.text(st.characters(exclude_categories=()) | st.sampled_from('"\\/\n\t\0\ud800\udc00')), st.integers(0, 40))
def test_a_string_s_characters_may_be_written_in_two_parts(text, cut):
    written = string_text(text[:cut]) + string_text(text[cut:])
    assert written == string_text(text)
    written.encode("utf-8")
    # Two halves that meet are one character to a reader of JSON, as they are in UTF-16.
    assert json.loads(f'"{written}"').encode("utf-16", "surrogatepass") == text.encode("utf-16", "surrogatepass")


@STEADY
@given(
    st.text() | st.from_regex(r"[-+0-9.eE_ ]{1,9}", fullmatch=True),
    st.sampled_from([INTEGER, NUMBER, BOOLEAN, JSON, ANY]),
)
def test_any_text_becomes_valid_json(text, kind):
    value = json.loads(converted(text, kind), parse_constant=pytest.fail)
    assert not isinstance(value, float) or math.isfinite(value)
    if isinstance(value, str) and kind in (INTEGER, NUMBER, BOOLEAN):
        assert value == text.removeprefix("\n").removesuffix("\n")
