"""Tokens to text and back, against the tokenizers library's own decoding of all tokens at once."""

import json
import random

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from serve.text import BYTE_OF_CHARACTER, SIZE_LIMIT, Detokenizer, TextError, TextModel
from tests.text_pair import END, VOCAB, tiny_tokenizer

SMILE = "\N{GRINNING FACE}"  # four bytes: F0 9F 98 80


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> Tokenizer:
    return tiny_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture
def folder(tmp_path, tokenizer):
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


@pytest.fixture
def text(folder) -> TextModel:
    return TextModel.read(folder)


def paired_tokenizer() -> TextModel:
    """A vocabulary in which the smile is two tokens of two bytes each, and "hi" is one."""
    character = {byte: character for character, byte in BYTE_OF_CHARACTER.items()}
    f0, x9f, x98, x80 = (character[byte] for byte in SMILE.encode())
    vocabulary = {letter: index for index, letter in enumerate(sorted(BYTE_OF_CHARACTER))}
    vocabulary |= {token: 256 + index for index, token in enumerate((f0 + x9f, x98 + x80, "hi"))}
    tokenizer = Tokenizer(models.BPE(vocabulary, [(f0, x9f), (x98, x80), ("h", "i")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return TextModel(tokenizer=tokenizer, eos_token_ids=(), special={})


def is_one_character(data: bytes) -> bool:
    try:
        return len(data.decode("utf-8")) == 1
    except UnicodeDecodeError:
        return False


def pieces(detokenizer: Detokenizer, tokens) -> list[str]:
    return [detokenizer.feed(token) for token in tokens]


def test_the_byte_alphabet_is_the_library_s():
    assert set(BYTE_OF_CHARACTER) == set(pre_tokenizers.ByteLevel.alphabet())
    assert sorted(BYTE_OF_CHARACTER.values()) == list(range(256))


def test_any_tokens_give_the_library_s_text_and_no_character_early_or_late(text, tokenizer):
    rng = random.Random(7)
    for _ in range(300):
        # Ids of no token occur too: a target's vocabulary is often padded.
        tokens = [rng.randrange(VOCAB + 8) for _ in range(rng.randrange(1, 24))]
        detokenizer, shown = Detokenizer(text), ""
        for count, token in enumerate(tokens, 1):
            shown += detokenizer.feed(token)
            # Beyond what is shown, the tokens so far hold at most one character that is not whole yet.
            so_far = tokenizer.decode(tokens[:count], skip_special_tokens=True)
            assert so_far in (shown, shown + "\N{REPLACEMENT CHARACTER}")
        assert shown + detokenizer.finish() == tokenizer.decode(tokens, skip_special_tokens=True)


@pytest.mark.parametrize("original", ["plain", "naïve", "中文字", SMILE * 2, "a\N{REPLACEMENT CHARACTER}b", "é\n\té"])
def test_text_survives_the_way_to_tokens_and_back(text, original):
    detokenizer = Detokenizer(text)
    shown = "".join(pieces(detokenizer, text.encode(original)))
    assert shown == original and detokenizer.finish() == ""


def test_a_character_over_two_tokens_comes_with_the_second():
    text = paired_tokenizer()
    assert text.encode("hi" + SMILE) == [258, 256, 257]
    assert pieces(Detokenizer(text), [258, 256, 257, 258]) == ["hi", "", SMILE, "hi"]


def test_text_that_ends_inside_a_character_says_so_only_at_the_end():
    text = paired_tokenizer()
    detokenizer = Detokenizer(text)
    assert pieces(detokenizer, [258, 256]) == ["hi", ""]
    assert detokenizer.finish() == "\N{REPLACEMENT CHARACTER}"


def test_bytes_that_can_be_no_character_do_not_hold_the_text_back():
    text = paired_tokenizer()
    # Half a smile, then "hi": the half can no longer become a character.
    assert pieces(Detokenizer(text), [256, 258]) == ["", "\N{REPLACEMENT CHARACTER}hi"]


def test_the_last_bytes_are_held_only_while_they_can_become_a_character():
    text = paired_tokenizer()
    of_byte = {text.bytes_of(token): token for token in range(256)}
    for lead in range(0xC0, 0x100):
        for second in range(0x80, 0x100):
            start = bytes([lead, second])
            tails = [start + bytes(rest) for rest in ((), (0x80,), (0xBF,), (0x80, 0x80), (0xBF, 0xBF))]
            if any(is_one_character(whole) for whole in tails[1:]):
                want = ""
            else:  # the second byte alone may still begin one
                want = start.decode("utf-8", errors="replace")
                want = want[:-1] if 0xC2 <= second <= 0xF4 else want
            shown = pieces(Detokenizer(text), [of_byte[bytes([lead])], of_byte[bytes([second])]])
            assert "".join(shown) == want, start


def test_a_real_replacement_character_is_not_taken_for_half_a_character(text):
    # Its three bytes are whole: it must not wait for what follows.
    assert "".join(pieces(Detokenizer(text), text.encode("a\ufffd"))) == "a\ufffd"


def test_hidden_and_control_tokens_add_nothing(text):
    a, b = text.encode("a")[0], text.encode("b")[0]
    assert "".join(pieces(Detokenizer(text), [a, END, b])) == "ab"
    assert "".join(pieces(Detokenizer(text, hidden=[a]), [a, b, a])) == "b"


def test_an_added_token_is_spelt_as_itself(tokenizer, tmp_path):
    extended = Tokenizer.from_str(tokenizer.to_str())
    extended.add_tokens(["two words"])
    extended.save(str(tmp_path / "tokenizer.json"))
    text = TextModel.read(tmp_path)
    assert Detokenizer(text).feed(VOCAB) == extended.decode([VOCAB]) == "two words"


def test_a_prompt_is_never_cut_or_padded_by_the_file_s_settings(folder, tokenizer):
    changed = Tokenizer.from_str(tokenizer.to_str())
    changed.enable_truncation(4)
    changed.enable_padding(length=64)
    changed.save(str(folder / "tokenizer.json"))
    prompt = "def push(self, item): " * 4
    assert TextModel.read(folder).encode(prompt) == tokenizer.encode(prompt).ids


def test_a_lone_surrogate_is_refused(text):
    with pytest.raises(TextError, match="not valid Unicode at character 2"):
        text.encode("ab\udcff")


@pytest.mark.parametrize(
    ("config", "want"),
    [
        ({"eos_token": "<|endoftext|>"}, (END,)),
        ({"eos_token": {"content": "<|mask|>", "special": True}}, (END + 1,)),
        ({"eos_token": None}, ()),
        ({}, ()),
    ],
)
def test_the_end_of_text_token_of_the_tokenizer_s_own_configuration(folder, config, want):
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    assert TextModel.read(folder).eos_token_ids == want


@pytest.mark.parametrize("config", ['{"eos_token": "<none>"}', '{"eos_token": 5}', "[]", "{"])
def test_a_tokenizer_configuration_that_cannot_be_right(folder, config):
    (folder / "tokenizer_config.json").write_text(config)
    with pytest.raises(TextError, match=r"tokenizer_config\.json"):
        TextModel.read(folder)


def test_faults_of_tokenizer_json(tmp_path, tokenizer):
    path = tmp_path / "tokenizer.json"
    with pytest.raises(TextError, match=r"tokenizer\.json: no such file"):
        TextModel.read(tmp_path)
    path.write_text('{"model": 3}')
    with pytest.raises(TextError, match="no valid tokenizer"):
        TextModel.read(tmp_path)
    for decoder, name in ((decoders.Metaspace(), "Metaspace"), (None, "NoneType")):
        other = Tokenizer.from_str(tokenizer.to_str())
        other.decoder = decoder  # pyright: ignore[reportAttributeAccessIssue]
        other.save(str(path))
        with pytest.raises(TextError, match=f"its decoder is {name}"):
            TextModel.read(tmp_path)
    with path.open("wb") as file:
        file.truncate(SIZE_LIMIT + 1)
    with pytest.raises(TextError, match="exceed the limit"):
        TextModel.read(tmp_path)


def test_stop_strings_that_could_never_be_found(text):
    text.check_stop_strings(["\n\n", "def "])
    with pytest.raises(TextError, match="empty"):
        text.check_stop_strings(["a", ""])
    with pytest.raises(TextError, match="control token '<|endoftext|>'".replace("|", r"\|")):
        text.check_stop_strings(["x<|endoftext|>"])
