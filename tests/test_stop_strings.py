"""Stop strings: every way of cutting the text into pieces shows the same."""

import itertools
import random

import pytest

from serve.completion import CompletionText, Request
from serve.stop_strings import StopStrings
from serve.text import TextModel
from tests.text_pair import END, tiny_tokenizer


def shown(stops, parts) -> tuple[str, str | None]:
    """What is shown of these pieces, and the stop string found."""
    matcher = StopStrings(stops)
    text = "".join(matcher.feed(part) for part in parts)
    return text + matcher.finish(), matcher.matched


def splits(text: str):
    """The text in one, two and three pieces at every place, and letter by letter."""
    for i, j in itertools.combinations_with_replacement(range(len(text) + 1), 2):
        yield [text[:i], text[i:j], text[j:]]
    yield list(text)


def by_definition(stops, text: str) -> tuple[str, str | None]:
    """Letter by letter: the first prefix of the text that ends with a stop string, without it."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            stop = max(found, key=len)
            return text[: end - len(stop)], stop
    return text, None


@pytest.mark.parametrize(
    ("stops", "text", "want"),
    [
        (["own fox"], "quick brown fox", ("quick br", "own fox")),
        (["own fox"], "quick brown fog", ("quick brown fog", None)),
        (["brown", "own fox"], "quick brown fox", ("quick ", "brown")),
        (["abcd", "bc"], "xabcd", ("xa", "bc")),
        (["c", "abc"], "xabc", ("x", "abc")),
        (["aab"], "aaab", ("a", "aab")),
        (["\n\n"], "a\n\n\nb", ("a", "\n\n")),
        ([], "a", ("a", None)),
    ],
)
def test_known_texts_at_every_split(stops, text, want):
    for parts in splits(text):
        assert shown(stops, parts) == want, parts


def test_random_texts_follow_the_definition_and_hold_back_no_more_than_needed():
    rng = random.Random(3)
    for _ in range(2000):
        stops = ["".join(rng.choices("ab", k=rng.randint(1, 4))) for _ in range(rng.randint(1, 3))]
        parts = ["".join(rng.choices("abc", k=rng.randint(0, 3))) for _ in range(6)]
        assert shown(stops, parts) == by_definition(stops, "".join(parts))

        matcher, so_far, visible = StopStrings(stops), "", ""
        for part in parts:
            so_far, visible = so_far + part, visible + matcher.feed(part)
            if matcher.matched:
                break
            beginnings = {stop[:n] for stop in stops for n in range(len(stop))}
            held = max(n for n in range(len(so_far) + 1) if so_far[len(so_far) - n :] in beginnings)
            assert visible == so_far[: len(so_far) - held]


def test_nothing_follows_a_match():
    matcher = StopStrings(["stop"])
    assert matcher.feed("a stop b") == "a "
    assert matcher.feed("c") == "" and matcher.finish() == ""


def test_an_empty_stop_string_is_refused():
    with pytest.raises(ValueError, match="empty"):
        StopStrings(["a", ""])


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> TextModel:
    folder = tmp_path_factory.mktemp("stops")
    tiny_tokenizer(folder).save(str(folder / "tokenizer.json"))
    return TextModel.read(folder)


def output(text: TextModel, *stops: str) -> CompletionText:
    return CompletionText(text, Request([0], 99, (END,), stops))


def test_a_stop_string_inside_an_accepted_block_ends_text_and_tokens(text):
    tokens = text.encode("x, y) and more")
    result = output(text, ", y")
    before_y = len(text.encode("x, "))
    assert result.feed(tokens) == result.text == "x"
    assert result.stopped and result.finish() == ""
    assert result.token_ids == tokens[: before_y + 1]


def test_a_stop_string_over_two_blocks_never_shows_its_beginning(text):
    result = output(text, "::end")
    assert result.feed(text.encode("a:")) == "a"
    assert result.feed(text.encode(":e")) == ""
    assert result.feed(text.encode("x")) == "::ex"
    assert not result.stopped


def test_a_stop_string_wins_over_the_end_of_text_and_the_limit(text):
    result = output(text, "b")
    assert result.feed([*text.encode("ab"), END]) == "a"
    assert result.stopped and END not in result.token_ids


def test_text_held_back_is_shown_when_the_text_ends(text):
    result = output(text, "b!")
    assert result.feed([*text.encode("ab"), END]) == "a"
    assert result.finish() == "b" and result.text == "ab"
    assert not result.stopped and result.token_ids[-1] == END


def test_half_a_character_at_the_end_is_part_of_the_text_only_then(text):
    half = text.encode("\N{GRINNING FACE}")[:2]
    result = output(text, "stop")
    assert result.feed(half) == ""
    assert result.finish() == "\N{REPLACEMENT CHARACTER}"
