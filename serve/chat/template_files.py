"""Where a checkpoint keeps its chat template, and the special tokens that a template may name."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dspine_jax.errors import WeightsError
from dspine_jax.json_file import read_json
from serve.text import TextError

SIZE_LIMIT = 2**20

_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def read_templates(folder: Path) -> dict[str, str]:
    """Templates by name, "default" among them: chat_template.jinja, else "chat_template" of tokenizer_config.json,
    else that of chat_template.json.

    Raises TextError when there is none, or one is broken or too large.
    """
    path = folder / "chat_template.jinja"
    if path.is_file():
        return {"default": _checked(_read(path), str(path))}
    for name in ("tokenizer_config.json", "chat_template.json"):
        path = folder / name
        if (value := _read_object(path).get("chat_template")) is not None:
            return _named(value, f"{path}: chat_template")
    raise TextError(
        f"{folder}: no chat template; a model that chats needs chat_template.jinja, or chat_template in"
        " tokenizer_config.json"
    )


def read_special_tokens(folder: Path) -> dict[str, Any]:
    """The names under which templates find special tokens, as far as tokenizer_config.json gives them."""
    config = _read_object(folder / "tokenizer_config.json")
    tokens: dict[str, Any] = {name: text for name in _TOKENS if (text := _content(config.get(name))) is not None}
    more = config.get("additional_special_tokens")
    if isinstance(more, list):
        tokens["additional_special_tokens"] = [text for item in more if (text := _content(item)) is not None]
    return tokens


def _named(value: Any, where: str) -> dict[str, str]:
    """One template, or a list of them with names."""
    if isinstance(value, str):
        return {"default": _checked(value, where)}
    found = {}
    for item in value if isinstance(value, list) else [None]:
        if not isinstance(item, Mapping):
            raise TextError(f"{where} holds a {type(item).__name__}; wanted a string or a list of named templates")
        name, text = item.get("name"), item.get("template")
        if not isinstance(name, str) or not isinstance(text, str):
            raise TextError(f"{where}: each template of a list needs a name and a template, both strings")
        found[name] = _checked(text, f"{where} {name!r}")
    if "default" not in found:
        raise TextError(f"{where}: none of the templates {sorted(found)} is named 'default'")
    return found


def _checked(text: str, where: str) -> str:
    if len(text) > SIZE_LIMIT:
        raise TextError(f"{where}: {len(text)} characters exceed the limit of {SIZE_LIMIT}")
    return text


def _read(path: Path) -> str:
    if (size := path.stat().st_size) > SIZE_LIMIT:
        raise TextError(f"{path}: {size} bytes exceed the limit of {SIZE_LIMIT}")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise TextError(f"{path}: not valid UTF-8 at byte {error.start}") from None


def _read_object(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return read_json(path)
    except WeightsError as error:
        raise TextError(str(error)) from None


def _content(token: Any) -> str | None:
    text = token.get("content") if isinstance(token, Mapping) else token
    return text if isinstance(text, str) else None
