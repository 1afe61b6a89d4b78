"""Between text and token ids: a byte-level tokenizer, and decoding that shows a character once it is whole."""

import codecs
import dataclasses
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Self

from tokenizers import Tokenizer, decoders

from dspine_jax.errors import WeightsError
from dspine_jax.json_file import read_json

SIZE_LIMIT = 64 * 2**20


class TextError(ValueError):
    """A tokenizer or a text that cannot be used; the message is one sentence for the user."""


@dataclasses.dataclass(frozen=True, eq=False)
class TextModel:
    """The tokenizer of a model folder."""

    tokenizer: Tokenizer
    eos_token_ids: tuple[int, ...]  # what the tokenizer's own configuration calls the end of a text; often empty
    special: dict[int, str]  # control tokens, which are no part of a text

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Reads tokenizer.json and, where it is there, the end-of-text token of tokenizer_config.json.

        Raises TextError when a file is missing, too large, broken, or no byte-level tokenizer.
        """
        tokenizer = _read_tokenizer(folder / "tokenizer.json")
        special = {
            number: token.content for number, token in tokenizer.get_added_tokens_decoder().items() if token.special
        }
        eos = _read_eos(folder / "tokenizer_config.json", tokenizer)
        return cls(tokenizer=tokenizer, eos_token_ids=eos, special=special)

    def encode(self, text: str) -> list[int]:
        """Token ids of a text; names of control tokens in it become those tokens.

        Raises TextError for a text with lone surrogates, which no encoding has.
        """
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise TextError(f"the text is not valid Unicode at character {error.start}") from None
        return self.tokenizer.encode(text).ids

    def bytes_of(self, token: int) -> bytes:
        """The UTF-8 bytes that a token adds to a text: none for a control token or an id without a token."""
        piece = self.tokenizer.id_to_token(token)
        if piece is None or token in self.special:
            return b""
        try:
            return bytes(BYTE_OF_CHARACTER[character] for character in piece)
        except KeyError:  # an added token is spelt as itself
            return piece.encode("utf-8")

    def check_stop_strings(self, stops: Sequence[str]) -> None:
        """Raises TextError for a stop string that could never be found."""
        for stop in stops:
            if not stop:
                raise TextError("a stop string is empty; wanted at least one character")
            for name in self.special.values():
                if name in stop:
                    raise TextError(
                        f"stop string {stop!r} holds the control token {name!r}, which is never part of the"
                        " text; leave it out"
                    )


class Detokenizer:
    """Text of one stream of tokens. A character is emitted with its last byte, never before and never later.

    Everything emitted, `finish` included, is what the tokenizer decodes from all tokens at once.
    """

    def __init__(self, text: TextModel, hidden: Collection[int] = ()):
        """Tokens in `hidden` add nothing to the text: the ids that end it."""
        self._text = text
        self._hidden = frozenset(hidden)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, token: int) -> str:
        """The characters that this token completes. Bytes that can be no character become U+FFFD at once."""
        return "" if token in self._hidden else self._decoder.decode(self._text.bytes_of(token))

    def finish(self) -> str:
        """U+FFFD when the stream ended inside a character, otherwise nothing."""
        return self._decoder.decode(b"", final=True)


def _byte_of_character() -> dict[str, int]:
    """Byte-level vocabularies write a byte as a printable character: itself, or the next from U+0100 on."""
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(0x100) if byte not in kept]
    return {chr(byte): byte for byte in kept} | {chr(0x100 + i): byte for i, byte in enumerate(moved)}


BYTE_OF_CHARACTER = _byte_of_character()


def _read_tokenizer(path: Path) -> Tokenizer:
    if not path.is_file():
        raise TextError(f"{path}: no such file; a model that generates text needs its tokenizer.json")
    if (size := path.stat().st_size) > SIZE_LIMIT:
        raise TextError(f"{path}: {size} bytes exceed the limit of {SIZE_LIMIT}")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception for every fault
        raise TextError(f"{path}: no valid tokenizer: {error}") from None
    if not isinstance(tokenizer.decoder, decoders.ByteLevel):
        raise TextError(
            f"{path}: its decoder is {type(tokenizer.decoder).__name__}; only byte-level tokenizers"
            " (ByteLevel) are supported"
        )
    # A file may ask for these, and both would change a prompt silently.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _read_eos(path: Path, tokenizer: Tokenizer) -> tuple[int, ...]:
    if not path.is_file():
        return ()
    try:
        token = read_json(path).get("eos_token")
    except WeightsError as error:
        raise TextError(str(error)) from None
    content = token.get("content") if isinstance(token, dict) else token
    if content is None:
        return ()
    number = tokenizer.token_to_id(content) if isinstance(content, str) else None
    if number is None:
        raise TextError(f"{path}: eos_token is {content!r}, which tokenizer.json does not have")
    return (number,)
