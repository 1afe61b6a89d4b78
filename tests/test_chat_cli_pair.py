"""`dspine chat` with a real engine: its answers are those of plain decoding."""

import io
import shutil
import sys

import pytest

import dspine_jax
from serve.chat import ChatTemplate
from serve.chat_cli import cli
from serve.text import TextModel
from tests.chat_engine import ASSETS
from tests.engine_bench import quick_compilation
from tests.text_pair import text_pair

NEW = 12


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chat") / "model"
    shutil.copytree(text_pair(tmp_path_factory.getbasetemp()).converted, folder)
    shutil.copy(ASSETS / "target" / "chat_template.jinja", folder / "target")
    return folder


@pytest.fixture(autouse=True)
def quick():
    with quick_compilation():
        yield


def plain(model, messages) -> str:
    """What plain decoding answers."""
    pair, text = dspine_jax.load(model), TextModel.read(model / "target")
    prompt = text.encode(ChatTemplate.read(model / "target").render(messages, enable_thinking=False))
    result = dspine_jax.generate_plain(pair, [prompt], max_new_tokens=NEW)
    return text.tokenizer.decode(result.tokens[0].tolist())


def test_two_turns_equal_plain_decoding(model, monkeypatch, capsys):
    questions = ["def add(left, right):", "class Stack:"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\n".join(questions).encode())))
    assert cli.main([str(model), "--think", "off", "--max-new-tokens", str(NEW)]) == 0
    captured = capsys.readouterr()
    messages: list[dict[str, str]] = []
    wanted = ""
    for question in questions:
        messages.append({"role": "user", "content": question})
        answer = plain(model, messages)
        messages.append({"role": "assistant", "content": answer})
        wanted += answer.lstrip("\n") + "\n" * (not answer.endswith("\n"))
    assert captured.out == wanted
    assert captured.err.count(f"\n{NEW} tokens · ") == 2
