"""One answer's events become deltas: text held back, tokens beside it, reasons to end."""

import itertools

import pytest

from dspine_jax import SamplingParams
from serve.chat import ChatOutput, Content, Reasoning, ToolCallArguments
from serve.engine import EngineStopped, Event, Handle, Request, RequestFailed
from serve.http.answer.choice import Choice, Plain
from serve.http.answer.text import AnswerText
from tests.http_server import text_model
from tests.scripted_engine import event_of
from tests.text_pair import END

REQUEST = Request([1], 64, sampling=SamplingParams(logprobs=0))


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return text_model(tmp_path_factory.getbasetemp())


def choice_of(text, stops=(), parser=None, **options) -> Choice:
    handle = Handle(0, None, lambda: None)
    return Choice(0, handle, AnswerText(text, (END,), stops), parser or Plain(), **options)


def run(choice, tokens, cuts, finish="length"):
    """Deltas of the tokens, cut into events at these places."""
    places = [0, *cuts, len(tokens)]
    deltas = []
    for start, end in itertools.pairwise(places):
        last = finish if end == len(tokens) else None
        deltas += choice.feed(event_of(tokens[start:end], REQUEST, finish=last))
        if choice.finish is not None:
            break
    return deltas


def shown(deltas) -> str:
    return "".join(delta.piece.text for delta in deltas if isinstance(delta.piece, Content))


def test_a_stop_string_never_shows_however_the_events_are_cut(text):
    tokens = text.tokenizer.encode("quick brown fox jumps").ids
    whole = None
    for cut in range(1, len(tokens)):
        choice = choice_of(text, ["own fox", "fox jumps"])
        deltas = run(choice, tokens, [cut])
        assert (shown(deltas), choice.finish) == ("quick br", "stop")
        facts = [facts.token for delta in deltas for facts in delta.tokens]
        whole = whole or facts
        assert facts == whole == tokens[: choice.completion_tokens]
    assert choice_of(text).handle.cancelled is False


def test_a_stop_string_before_the_engine_ends_cancels_at_once(text):
    tokens = text.tokenizer.encode("ab stop cd").ids
    choice = choice_of(text, ["stop"])
    assert shown(choice.feed(event_of(tokens, REQUEST))) == "ab "
    assert choice.handle.cancelled and choice.finish == "stop"
    assert choice.completion_tokens < len(tokens)


@pytest.mark.parametrize("word", ["hi😀", "日本", "é!", "a👩‍👩‍👧z"])
def test_characters_over_several_tokens_are_whole_and_prompt(text, word):
    tokens = text.tokenizer.encode(word).ids
    assert len(tokens) > len(word) or "👩" in word or "é" in word
    for cut in range(1, len(tokens)):
        choice = choice_of(text)
        deltas = run(choice, tokens, [cut])
        assert shown(deltas) == word and "\ufffd" not in word
        assert [facts.token for delta in deltas for facts in delta.tokens] == tokens
        for delta in deltas:  # each delta's tokens are those of its text
            assert "".join(facts.text for facts in delta.tokens) == delta.piece.text


def test_a_limit_inside_a_character_gives_one_replacement_at_the_end(text):
    tokens = text.tokenizer.encode("hi😀").ids
    choice = choice_of(text)
    first = choice.feed(event_of(tokens[:2], REQUEST))
    assert shown(first) == "hi"
    assert shown(choice.feed(event_of(tokens[2:-1], REQUEST, finish="length"))) == "\ufffd"


def test_tokens_without_text_come_with_the_last_delta(text):
    tokens = [*text.tokenizer.encode("ok").ids, END]
    choice = choice_of(text)
    deltas = choice.feed(event_of(tokens, REQUEST, finish="stop"))
    assert [facts.token for facts in deltas[-1].tokens] == tokens and shown(deltas) == "ok"
    choice = choice_of(text)
    deltas = choice.feed(event_of([END], REQUEST, finish="stop"))
    assert [(delta.piece, len(delta.tokens)) for delta in deltas] == [(Content(""), 1)]


TOOLS = [{"type": "function", "function": {"name": "get", "parameters": {"properties": {"a": {"type": "string"}}}}}]
CALL = "<tool_call>\n<function=get>\n<parameter=a>\n{}\n</parameter>\n</function>\n</tool_call>"


def test_calls_reasoning_and_their_tokens(text):
    tokens = text.tokenizer.encode("why\n</think>\n\n" + CALL.format("x")).ids
    choice = choice_of(text, parser=ChatOutput(reasoning=True, tools=TOOLS))
    deltas = run(choice, [*tokens, END], [5, 9], finish="stop")
    assert choice.finish == "tool_calls"
    assert "".join(d.piece.text for d in deltas if isinstance(d.piece, Reasoning)).strip() == "why"
    arguments = "".join(d.piece.text for d in deltas if isinstance(d.piece, ToolCallArguments))
    assert arguments == '{"a": "x"}'
    assert [facts.token for delta in deltas for facts in delta.tokens] == [*tokens, END]


def test_only_one_call_when_asked_for_one(text):
    tokens = text.tokenizer.encode(CALL.format("x") + CALL.format("y")).ids
    choice = choice_of(text, parser=ChatOutput(reasoning=False, tools=TOOLS), most_calls=1)
    deltas = run(choice, tokens, range(1, len(tokens)))
    assert choice.finish == "tool_calls" and choice.handle.cancelled
    arguments = [d.piece for d in deltas if isinstance(d.piece, ToolCallArguments)]
    assert "".join(piece.text for piece in arguments) == '{"a": "x"}'


def test_failures_are_raised(text):
    with pytest.raises(RequestFailed):
        choice_of(text).feed(Event.end("error", RequestFailed("nan")))
    with pytest.raises(EngineStopped, match="shutting down"):
        choice_of(text).feed(Event.end("cancelled"))
