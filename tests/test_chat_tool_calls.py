"""Calls: argument text that is streamed, the same for every cut, and valid JSON once the call is whole."""

import itertools
import json
import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from serve.chat import ChatOutput, Content, ToolCallArguments, ToolCallBegin
from serve.chat.tags import BLANK_LIMIT
from tests.chat_texts import NO_ARGUMENTS, STEADY, TOOLS, WEATHER, answer, call_text, calls, cuts, pieces_of

BLANK = r"[ \t\r\n]*"
KEYS = list(WEATHER["function"]["parameters"]["properties"])
TAGS = [
    *("<tool_call>", "</tool_call>", "<function=now>", "<function=get_weather>", "<function=other>", "</function>"),
    *("<parameter=city>", "<parameter=days>", "<parameter=mine>", "</parameter>", "<think>", "</think>"),
]
CALL = call_text("get_weather", {"city": "Köln", "days": "3"})
CALLED = ["get_weather", {"city": "Köln", "days": 3}]


def every_way(text: str):
    """In one part, by characters, and in two parts at each place."""
    yield [text]
    yield list(text)
    for place in range(1, len(text)):
        yield [text[:place], text[place:]]


def test_a_call_however_it_is_cut():
    text = f"I look it up.\n\n{CALL}\n"
    want = {"reasoning": "", "content": "I look it up.", "calls": [["get_weather", '{"city": "Köln", "days": 3}']]}
    for parts in every_way(text):
        assert answer(parts) == want, parts
        assert answer(parts, complete=True) == want


def test_the_order_of_the_pieces():
    output = ChatOutput(reasoning=True, tools=TOOLS)
    assert not output.called_tools
    pieces = output.feed("a</think>b" + CALL + CALL) + output.finish()
    assert [type(piece).__name__ for piece in pieces] == [
        "Reasoning",
        "Content",
        *["ToolCallBegin", "ToolCallArguments"] * 2,
    ]
    assert output.called_tools
    begins = [piece for piece in pieces if isinstance(piece, ToolCallBegin)]
    assert [(begin.index, begin.name) for begin in begins] == [(0, "get_weather"), (1, "get_weather")]
    assert all(re.fullmatch("call_[0-9a-f]{24}", begin.id) for begin in begins)
    assert len({begin.id for begin in begins}) == 2


@pytest.mark.parametrize(
    ("text", "want", "content"),
    [
        ("<tool_call><function=now></function></tool_call>", [["now", {}]], ""),
        ("<tool_call>\n<function=now>\n</function>\n</tool_call>", [["now", {}]], ""),
        # Several blocks, several functions in one block, text before, between and after.
        (f"a\n{CALL}\n{CALL}\n", [CALLED] * 2, "a"),
        (f"a\n{CALL}\n\nb {CALL} c", [CALLED] * 2, "a\n\nb c"),
        (CALL.replace("</function>", "</function>\n<function=now></function>"), [CALLED, ["now", {}]], ""),
        # A function that no tool has: it is the client that knows.
        (call_text("other", {"x": "1", "y": "é"}), [["other", {"x": "1", "y": "é"}]], ""),
        # End tags that were forgotten.
        (CALL.replace("\n</parameter>\n<parameter", "\n<parameter"), [CALLED], ""),
        (CALL.replace("\n</parameter>", ""), [CALLED], ""),
        (CALL.replace("</function>", ""), [CALLED], ""),
        (CALL.replace("\n</function>", "").replace("\n</parameter>", ""), [CALLED], ""),
        (CALL.replace("</tool_call>", "") + CALL, [CALLED] * 2, ""),
        (CALL.replace("</function>\n</tool_call>", "") + CALL, [CALLED] * 2, ""),
        (CALL.replace("</tool_call>", "") + "so", [CALLED], "\nso"),
        # One end tag too many.
        (CALL.replace("weather>", "weather></parameter>"), [CALLED], ""),
        (CALL.replace("</function>", "</function></tool_call>"), [CALLED], "\n</tool_call>"),
        # <tool_call> that was forgotten: at the beginning of a line, and only for a tool.
        (CALL.removeprefix("<tool_call>"), [CALLED], ""),
        ("a\n" + CALL.removeprefix("<tool_call>").removesuffix("</tool_call>"), [CALLED], "a"),
        ("a <function=now></function>", [], "a <function=now></function>"),
        ("<function=other></function>", [], "<function=other></function>"),
        # No calls.
        ("<tool_call>\nnone</tool_call>", [], "<tool_call>\nnone</tool_call>"),
        ("<tool_call>\n<function=a<b></function>", [], "<tool_call>\n<function=a<b></function>"),
        ("<tool_call><function=" + "x" * 129 + ">", [], "<tool_call><function=" + "x" * 129 + ">"),
        ("1 < 2 and <b>\n", [], "1 < 2 and <b>\n"),
        # Text inside a call that is no markup is said.
        ("<tool_call><function=now>\nwell, {}\n</function></tool_call>", [["now", {}]], "well, {}\n"),
        ("<tool_call><function=now><b></function></tool_call>", [["now", {}]], "<b>"),
    ],
)
def test_what_is_a_call_and_what_is_text(text, want, content):
    for parts in every_way(text):
        assert calls(parts) == want, parts
        assert answer(parts)["content"] == content, parts


@pytest.mark.parametrize(
    "value",
    [
        "print('</parameter>')",
        "</parameter> is an end tag",
        "a</parameter>\nb",
        "return '</function>'\n</functions>",
        "<tool_call> and </tool_call>.",
        "<parameter=mine>",
        "<parameter=city>",
        "<function=now>",
        '"quoted" \\ \t\0 \x7f',
        "\n",
        "\n\n",
        "",
        " a\n ",
        "null",
        "12",
        "</para",
        "<",
        "🙂\ud83d\ude00漢字",
    ],
)
def test_a_string_is_written_as_it_is(value):
    text = call_text("get_weather", {"city": value, "days": "1"})
    want = {"city": value.encode("utf-16", "surrogatepass").decode("utf-16"), "days": 1}
    for parts in every_way(text):
        assert calls(parts) == [["get_weather", want]], parts


def test_values_have_the_types_of_the_schema():
    given_values = {"note": "NULL", "days": "7", "exact": "True", "places": "[1, 2.5]", "mine": "4", "city": "null"}
    want = {"note": None, "days": 7, "exact": True, "places": [1, 2.5], "mine": "4", "city": "null"}
    for parts in every_way(call_text("get_weather", given_values)):
        assert calls(parts) == [["get_weather", want]]


def test_a_parameter_that_comes_twice_is_written_twice():
    text = call_text("get_weather", {"city": "a"}).replace("</function>", "<parameter=city>b</parameter></function>")
    for parts in every_way(text):
        assert answer(parts)["calls"] == [["get_weather", '{"city": "a", "city": "b"}']]
        assert calls(parts) == [["get_weather", {"city": "b"}]]


def test_one_delta_with_the_last_parameter_and_every_end_tag():
    head, tail = CALL.split("<parameter=days>")
    assert calls([head, "<parameter=days>" + tail]) == [CALLED]


def test_a_long_string_comes_piece_by_piece():
    words = [f"word{i} " for i in range(400)]
    output = ChatOutput(reasoning=False, tools=TOOLS)
    output.feed("<tool_call>\n<function=get_weather>\n<parameter=note>\n")
    pieces = [output.feed(word) for word in words]
    assert all(len(found) == 1 and isinstance(found[0], ToolCallArguments) for found in pieces)
    assert pieces[0] == [ToolCallArguments(0, '"word0 ')]
    assert pieces[7] == [ToolCallArguments(0, "word7 ")]


@pytest.mark.parametrize("value", ["null", "nul", "nullable", "N", "\nnull", "null\n\n", ""])
def test_what_may_become_null_waits_only_so_long(value):
    output, shown = ChatOutput(reasoning=False, tools=TOOLS), ""
    output.feed("<tool_call><function=get_weather><parameter=note>\n")
    for end, character in enumerate(value, 1):
        shown += "".join(piece.text for piece in output.feed(character) if isinstance(piece, ToolCallArguments))
        if not "null".startswith(value[:end].lower().removesuffix("\n")):
            assert json.loads(shown + '"') == value[:end].removesuffix("\n")
        else:
            assert shown == ""
    rest = output.feed("\n</parameter></function></tool_call>")
    text = shown + "".join(piece.text for piece in rest if isinstance(piece, ToolCallArguments))
    assert json.loads('{"note": ' + text) == {"note": None if value == "null" else value}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("It <b", "It <b"),
        ("It ", "It "),
        ("It.\n<tool_cal", "It.\n"),
        ("It <tool_call> x", "It <tool_call> x"),
        ("</think", "</think"),
        ("a\n <func", "a\n "),
        ("a <func", "a <func"),
        ("<tool_call>\n<function=n", ""),
    ],
)
def test_content_is_held_back_only_while_it_may_be_a_tag(text, shown):
    output = ChatOutput(reasoning=False, tools=TOOLS)
    said = "".join(piece.text for part in text for piece in output.feed(part) if isinstance(piece, Content))
    # Blanks before what is held belong to a call that may begin there.
    assert said == shown.rstrip()
    assert said + "".join(piece.text for piece in output.finish() if isinstance(piece, Content)) == text


def test_only_so_many_blanks_wait_for_a_tag():
    limit, end = BLANK_LIMIT, CALL.index("</parameter>") + len("</parameter>")
    for parts in every_way("a" + "\n" * (limit + 6) + CALL + "\n" * (limit + 1)):
        found = answer(parts)
        assert found["content"] == "a" + "\n" * 6 + "\n" * (limit + 1) and found["calls"] == answer([CALL])["calls"]
    for count, want in ((limit, "Köln"), (limit + 1, "Köln\n</parameter>" + "\n" * limit)):
        for parts in every_way(CALL[:end] + "\n" * count + CALL[end:].lstrip()):
            assert calls(parts) == [["get_weather", {"city": want, "days": 3}]]
    text = "<tool_call>" + " " * (limit + 1) + "<function=now></function>"
    assert answer(list(text)) == answer([text]) == {"reasoning": "", "content": text, "calls": []}
    for reasoning in (True, False):
        text = "\n" * (limit + 1) + "<think>a</think>b"
        found = answer(list(text), reasoning=reasoning)
        assert found == answer([text], reasoning=reasoning) and found["content"] == ("b" if reasoning else text)


@pytest.mark.parametrize("complete", [True, False])
def test_a_call_that_is_cut_off(complete):
    for end in range(len("<tool_call>\n<function=get_weather>"), len(CALL)):
        found = answer(list(CALL[:end]), complete=complete)
        ((name, text),) = found["calls"]
        assert name == "get_weather" and found["content"] == ""
        assert found == answer([CALL[:end]], complete=complete)
        whole = "</function>" in CALL[:end]
        if complete or whole:
            assert json.loads(text).keys() <= {"city", "days"}
        else:  # nobody can take it for a whole call
            with pytest.raises(ValueError, match="line 1"):
                json.loads(text)
        assert text.startswith("{")


def test_a_complete_answer_closes_a_call_whose_end_tags_are_missing():
    text = "<tool_call>\n<function=get_weather>\n<parameter=days>\n3\n</parameter>\n<parameter=city>\nKöln\n"
    for parts in every_way(text):
        assert calls(parts, complete=True) == [["get_weather", {"days": 3, "city": "Köln"}]]
        assert answer(parts)["calls"] == [["get_weather", '{"days": 3, "city": "Köln']]
        assert answer([*parts[:-1], parts[-1].removesuffix("\n")])["calls"] == answer(parts)["calls"]


VALUES = st.lists(
    st.text(st.characters(codec="utf-8") | st.sampled_from('"\\\n\r\t<>/'), max_size=8)
    | st.sampled_from([*TAGS, "\n", "null", "漢字", "🙂", "</param", "<parameter="]),
    max_size=4,
).map("".join)
CALLS = st.tuples(
    st.sampled_from(["get_weather", "other"]),
    st.dictionaries(st.sampled_from(["city", "note", "mine", "x y"]), VALUES, max_size=3),
    st.none() | st.integers(),
)


def ends_early(value: str, pending: list[str]) -> bool:
    """By the documented rule: whether something in the value ends it before its own end tag."""
    tag = r"(?:<parameter=|</function>|</tool_call>|<tool_call>|<function=)"
    ends = [
        rf"</parameter>{BLANK}{tag}",
        rf"</function>{BLANK}(?:</tool_call>|<tool_call>|<function=)",
        rf"</tool_call>{BLANK}<tool_call>",
        *(f"<parameter={key}>" for key in pending),
    ]
    # What follows is an end tag: one in the value, with only blanks behind it, ends the value.
    return re.search("|".join(ends), value) is not None or re.search(rf"</function>{BLANK}$", value) is not None


@STEADY
@given(st.data(), st.lists(st.tuples(st.text(st.characters(codec="utf-8", exclude_characters="<")), CALLS), max_size=3))
def test_documents_of_the_grammar(data, turns):
    text, want = "", []
    for said, (name, strings, days) in turns:
        arguments = strings | ({"days": str(days)} if days is not None and name == "get_weather" else {})
        pending = list(KEYS) if name == "get_weather" else []
        for key, value in arguments.items():
            pending = [other for other in pending if other != key]
            assume(not ends_early(value, pending))
        text += said + call_text(name, arguments)
        values = {
            key: None if (name, key, value.lower()) == ("get_weather", "note", "null") else value
            for key, value in strings.items()
        }
        want.append([name, values | ({"days": days} if days is not None and name == "get_weather" else {})])
    parts = data.draw(cuts(text))
    assert calls(parts) == want
    found = answer(parts)
    assert found == answer([text]) == answer(parts, complete=True)
    # Blanks before a call, and between two, are no content.
    kept = "".join(said.rstrip(" \t\r\n") for said, _ in turns)
    assert found["content"] == kept


WORDS = [f"w{i}w" for i in range(12)]


@STEADY
@given(st.data(), st.lists(st.sampled_from([*TAGS, *TAGS, "<", ">", "</", "\n", " ", "<function=", "w"]), max_size=16))
def test_garbage_is_the_same_for_every_cut_and_loses_no_word(data, fragments):
    """Words stand between random tags: each comes out once, in order, whatever the tags make of it."""
    words = itertools.cycle(WORDS)
    pairs = [(fragment, next(words) if data.draw(st.booleans()) else "") for fragment in fragments]
    text = "".join(fragment + word for fragment, word in pairs) + "\nend."
    tools = [NO_ARGUMENTS, {"type": "function", "function": {"name": "get_weather"}}]  # strings only
    parts = data.draw(cuts(text))
    for reasoning in (True, False):
        found = answer(parts, reasoning=reasoning, tools=tools)
        assert found == answer([text], reasoning=reasoning, tools=tools)
        closed = answer(parts, reasoning=reasoning, tools=tools, complete=True)
        for _, arguments in closed["calls"]:
            json.loads(arguments)
        pieces = pieces_of(parts, reasoning=reasoning, tools=tools, complete=True)
        out = "".join(piece.name if isinstance(piece, ToolCallBegin) else piece.text for piece in pieces)
        assert re.findall(r"w\d+w|end\.", out) == re.findall(r"w\d+w|end\.", text)


@STEADY
@given(st.data(), st.text(st.sampled_from('<>/=_ \n"\\') | st.characters(exclude_categories=()), max_size=40))
def test_any_text_without_calls_is_content_to_the_last_character(data, text):
    found = answer(data.draw(cuts(text)), tools=TOOLS)
    if not found["calls"] and not re.match(r"[ \t\r\n]*<think>", text):
        assert found == {"reasoning": "", "content": text, "calls": []}
