"""Reasoning: every way of cutting an answer gives the same, and no more is held back than may be a tag."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.chat import ChatOutput, Content, Reasoning
from serve.chat.tool_calls import ToolCallParser
from tests.chat_texts import STEADY, TOOLS, answer, cuts

FRAGMENTS = st.sampled_from(
    [
        "<think>",
        "</think>",
        "<tool_call>",
        "<function=now>",
        "<",
        ">",
        "/",
        "think",
        "<thin",
        "</",
        " ",
        "\n",
        "a",
        "é🙂",
    ]
)
ANSWERS = st.lists(FRAGMENTS, max_size=12).map("".join)


def by_definition(text: str, *, reasoning: bool, tools) -> tuple[str, str]:
    """Reasoning, and the rest with its markup, of a whole answer."""
    begins = re.match(r"(?:[ \t\r\n]*<think>)+", text)
    if not (begins or reasoning):
        return "", text
    text = text[begins.end() :] if begins else text
    ends = r"</think>|(?=<tool_call>[ \t\r\n]*<function=[^<>\r\n]{1,128}>)" if tools else "</think>"
    thought, *rest = re.split(ends, text, maxsplit=1)
    return thought, "".join(rest)


@pytest.mark.parametrize("reasoning", [True, False])
@pytest.mark.parametrize(
    ("text", "thought", "said"),
    [
        ("<think>a</think>b", "a", "b"),
        ("\n<think>\n<think>\na\n</think>\n\nb", "\na\n", "\n\nb"),
        ("<think></think>b</think>c<think>", "", "b</think>c<think>"),
        ("<think>cut off", "cut off", ""),
        ("<think>cut off</thi", "cut off</thi", ""),
    ],
)
def test_reasoning_that_the_answer_itself_opens(reasoning, text, thought, said):
    for parts in ([text], list(text)):
        assert answer(parts, reasoning=reasoning, tools=None) == {"reasoning": thought, "content": said, "calls": []}


@pytest.mark.parametrize("text", ["x", "a</think>b", "a <think>b</think>", "<thin", " ", "1 < 2", "<tool_call>x"])
def test_without_reasoning_all_of_it_is_content(text):
    assert answer(list(text), reasoning=False) == {"reasoning": "", "content": text, "calls": []}


@pytest.mark.parametrize(
    ("text", "content"), [("x</think>y", "y"), ("x", ""), ("x</think>", ""), ("x</think>\n\n", "\n\n")]
)
def test_reasoning_that_the_prompt_has_opened(text, content):
    assert answer(list(text), reasoning=True) == {"reasoning": "x", "content": content, "calls": []}


def test_a_call_inside_reasoning_ends_it():
    text = "I look.\n<tool_call>\n<function=now>\n</function>\n</tool_call>"
    for parts in ([text], list(text)):
        assert answer(parts, reasoning=True) == {"reasoning": "I look.\n", "content": "", "calls": [["now", "{}"]]}


@pytest.mark.parametrize(
    "quoted", ["<tool_call>", "`<tool_call>\n<tool_call>`", "<tool_call>\n<function=>", "<function=now>"]
)
def test_a_tag_that_reasoning_only_mentions_does_not_end_it(quoted):
    text = f"The tag {quoted} begins a call.</think>So."
    for parts in ([text], list(text)):
        got = answer(parts, reasoning=True)
        assert got == {"reasoning": f"The tag {quoted} begins a call.", "content": "So.", "calls": []}


def test_without_tools_a_call_is_text():
    text = "a<tool_call><function=now></function></tool_call></think>b<tool_call><function=now>"
    thought, _, said = text.partition("</think>")
    assert answer(list(text), reasoning=True, tools=None) == {"reasoning": thought, "content": said, "calls": []}


@STEADY
@given(st.data(), ANSWERS, st.booleans(), st.sampled_from([None, TOOLS]))
def test_any_cut_follows_the_definition(data, text, reasoning, tools):
    parts = data.draw(cuts(text))
    thought, rest = by_definition(text, reasoning=reasoning, tools=tools)
    got = answer(parts, reasoning=reasoning, tools=tools)
    assert got["reasoning"] == thought
    assert got == answer([text], reasoning=reasoning, tools=tools)
    if tools:
        parser = ToolCallParser(tools)
        pieces = parser.feed(rest) + parser.finish(complete=False)
        rest = "".join(piece.text for piece in pieces if isinstance(piece, Content))
    assert got["content"] == rest


@STEADY
@given(ANSWERS)
def test_nothing_is_held_back_but_what_may_be_a_tag(text):
    output, shown, said = ChatOutput(reasoning=True, tools=None), "", ""
    for end, character in enumerate(text, 1):
        for piece in output.feed(character):
            assert isinstance(piece, Reasoning | Content) and piece.text
            shown += piece.text if isinstance(piece, Reasoning) else ""
            said += piece.text if isinstance(piece, Content) else ""
        thought, rest = by_definition(text[:end], reasoning=True, tools=None)
        if re.fullmatch(r"\s*(<think>\s*)*(<(t(h(i(nk?)?)?)?)?)?", text[:end]):
            continue  # the beginning, which may still go away
        assert said == rest
        held = thought[len(shown) :]
        assert thought == shown + held and "</think>".startswith(held) and (not rest or not held)


def test_pieces_are_neither_empty_nor_cut_without_need():
    output = ChatOutput(reasoning=True, tools=None)
    assert output.feed("a</think>b") == [Reasoning("a"), Content("b")]
    assert output.feed("") == [] and output.finish() == []
    assert not output.called_tools
