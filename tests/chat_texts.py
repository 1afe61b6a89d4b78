"""Answers for the tests of chat: cut at random places, and brought back into one form."""

import itertools
import json

from hypothesis import settings
from hypothesis import strategies as st

from serve.chat import ChatOutput, Content, Reasoning, ToolCallBegin

# The same examples on every run, and no clock: the machines that run the tests are shared.
STEADY = settings(derandomize=True, deadline=None, database=None, max_examples=150)

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                "days": {"type": "integer"},
                "exact": {"type": "boolean"},
                "places": {"type": "array", "items": {"type": "number"}},
            },
        },
    },
}
NO_ARGUMENTS = {"type": "function", "function": {"name": "now"}}
TOOLS = [WEATHER, NO_ARGUMENTS]


def cuts(text: str):
    """Ways of cutting the text into pieces, one character each among them."""
    places = st.lists(st.integers(0, len(text)), max_size=12).map(lambda found: [0, *sorted(found), len(text)])
    pieces = places.map(lambda at: [text[i:j] for i, j in itertools.pairwise(at)])
    return st.one_of(st.just(list(text)), pieces)


def pieces_of(parts, *, reasoning=False, tools=TOOLS, complete=False):
    """Every piece of an answer that comes in these parts, in order."""
    output = ChatOutput(reasoning=reasoning, tools=tools)
    found = [piece for part in parts for piece in output.feed(part)]
    return found + output.finish(complete=complete)


def answer(parts, **options) -> dict:
    """The answer as a client puts it together: reasoning, content, and calls as [name, argument text]."""
    result = {"reasoning": "", "content": "", "calls": []}
    for piece in pieces_of(parts, **options):
        if isinstance(piece, Reasoning):
            result["reasoning"] += piece.text
        elif isinstance(piece, Content):
            result["content"] += piece.text
        elif isinstance(piece, ToolCallBegin):
            assert piece.index == len(result["calls"])
            result["calls"].append([piece.name, ""])
        else:
            assert piece.index == len(result["calls"]) - 1
            result["calls"][piece.index][1] += piece.text
    return result


def calls(parts, **options) -> list:
    """The calls as [name, arguments]."""
    return [[name, json.loads(text)] for name, text in answer(parts, **options)["calls"]]


def call_text(name: str, arguments: dict[str, str]) -> str:
    """A call as the models write it."""
    body = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{body}</function>\n</tool_call>"
