"""Chat templates: the text is transformers' own, and what is wrong with a request is said."""

import itertools
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import dspine_jax
from convert.cli import main as convert
from serve.chat import ChatError, ChatOutput, ChatTemplate, Content, ToolCallArguments, starts_in_reasoning
from serve.chat.budget import Limits
from serve.text import TextError
from tests import peers
from tests.chat_texts import TOOLS, WEATHER, call_text
from tests.checkpoints import write_pair

BUNDLED = Path(dspine_jax.__file__).parent / "assets" / "tiny-pair" / "target"
USER = {"role": "user", "content": "Wie wird <b>das</b> Wetter & so? 晴れ 🙂 'x' \"y\""}

OTHERS = {
    # Names of tokens, a loop with break and continue, JSON in each of its forms, whitespace control.
    "features": """{{ bos_token }}{{ eos_token }}{{ pad_token }}
{% for message in messages %}
    {% if message.role == 'skip' %}{% continue %}{% endif %}
    {% if loop.index0 > 3 %}{% break %}{% endif %}
    {% generation %}{{ message | tojson }}{% endgeneration %}
{{ message | tojson(indent=2) }} {{- message.thinking }} {{ dict(a=1) | tojson }}
{% endfor %}
{% set ns = namespace(n=0) %}{% for i in range(3) %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}
{{ extra | tojson(ensure_ascii=True) }} {{ strftime_now('%%') }} {{ 'a' * 3 }} {{ add_generation_prompt }}""",
    # Trims the messages.
    "trimming": "{% for message in messages %}[{{ message.content | trim }}]{% endfor %}",
}
NAMED = [
    {"name": "default", "template": "plain {{ messages | tojson }} {{ tools }}"},
    {"name": "tool_use", "template": "tools {{ tools | tojson }}"},
    {"name": "rag", "template": "{{ documents }}"},
]


def called(arguments):
    return {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": arguments}]}


CALL = called({"name": "get_weather", "arguments": {"city": "Köln\n<x>", "days": 3, "places": [1.5, {"a": None}]}})
CONVERSATIONS = [
    [USER],
    [{"role": "system", "content": " Be <kind>.\n"}, USER],
    [{"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, USER],
    [USER, {"role": "assistant", "content": "\n\nHello\n", "reasoning_content": "\nwell\n"}, USER],
    [USER, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello</think>"}, USER],
    [USER, {"role": "assistant", "content": None, "reasoning": "other name"}, USER],
    [USER, CALL | {"content": "Let me see."}, {"role": "tool", "content": "sun"}],
    [USER, CALL | {"content": None}, {"role": "tool", "content": "1"}, {"role": "tool", "content": "2"}, USER],
    [USER, called({"name": "now", "arguments": {}}), {"role": "tool", "content": ""}, {"role": "assistant"}],
]
ARGUMENTS = [
    {"add_generation_prompt": True},
    {"add_generation_prompt": True, "enable_thinking": True},
    {"add_generation_prompt": True, "enable_thinking": False, "reasoning_effort": "high"},
    {"add_generation_prompt": True, "reasoning_effort": "low", "preserve_thinking": False},
    {"add_generation_prompt": False, "preserve_thinking": False},
]


def with_template(folder: Path, template, **config) -> Path:
    """A model folder: a file for one template, the configuration for several."""
    shutil.copytree(BUNDLED, folder, ignore=shutil.ignore_patterns("*.safetensors", "chat_template*"))
    if isinstance(template, str):
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    else:
        config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def template_of(tmp_path: Path, source: str, limits: Limits | None = None) -> ChatTemplate:
    (tmp_path / "chat_template.jinja").write_text(source, encoding="utf-8")
    return ChatTemplate.read(tmp_path, limits=limits)


@pytest.fixture(scope="module")
def bundled() -> ChatTemplate:
    return ChatTemplate.read(BUNDLED)


@pytest.mark.skipif(not peers.available(), reason=peers.MISSING)
def test_every_text_is_that_of_transformers(tmp_path):
    tokens = {"bos_token": "<|mask|>", "eos_token": {"content": "<|endoftext|>", "__type": "AddedToken"}}
    jobs = [
        {"folder": str(BUNDLED), "messages": messages, "tools": tools, "arguments": arguments}
        for messages, tools, arguments in itertools.product(CONVERSATIONS, (None, TOOLS), ARGUMENTS)
    ]
    for name, source in OTHERS.items():
        folder = with_template(tmp_path / name, source, **tokens)
        jobs += [
            {"folder": str(folder), "messages": messages, "tools": TOOLS, "arguments": {"extra": ["é", 1.5, None]}}
            for messages in CONVERSATIONS
        ]
    folder = with_template(tmp_path / "named", NAMED, **tokens)
    jobs += [{"folder": str(folder), "messages": [USER], "tools": tools, "arguments": {}} for tools in (None, TOOLS)]
    prefilled: list[list[dict]] = [
        [USER, {"role": "assistant", "content": text}] for text in ("def f(  ", "a\n", "<think>\nhm", "x")
    ]
    prefilled.append([USER, {"role": "assistant", "content": [{"type": "text", "text": "one"}]}])
    jobs += [
        {"folder": folder, "messages": messages, "tools": None, "arguments": {"continue_final_message": True}}
        for folder in (str(BUNDLED), str(tmp_path / "trimming"))
        for messages in prefilled[: 5 if folder == str(BUNDLED) else 4]
    ]
    (tmp_path / "in.json").write_text(json.dumps(jobs), encoding="utf-8")
    peers.run(Path(__file__).with_name("torch_chat_template.py"), tmp_path / "in.json", tmp_path / "out.json")
    wanted = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert len(wanted) == len(jobs) > 100
    for job, want in zip(jobs, wanted, strict=True):
        arguments = {"add_generation_prompt": False} | job["arguments"]
        got = ChatTemplate.read(Path(job["folder"])).render(job["messages"], tools=job["tools"], **arguments)
        assert got == want, job


def test_argument_strings_of_calls_become_objects(bundled):
    text = json.dumps(CALL["tool_calls"][0]["function"]["arguments"])
    as_string = called({"name": "get_weather", "arguments": text})
    assert bundled.render([USER, as_string]) == bundled.render([USER, CALL])
    assert as_string["tool_calls"][0]["function"]["arguments"] == text
    empty = bundled.render([USER, called({"name": "now", "arguments": ""})])
    assert empty == bundled.render([USER, called({"name": "now", "arguments": "{}"})])


@pytest.mark.parametrize(("text", "wrong"), [("{", "no valid JSON"), ("[1]", "a JSON list"), ('{"a": NaN}', "NaN")])
def test_arguments_that_are_no_object_are_refused(bundled, text, wrong):
    with pytest.raises(ChatError, match=wrong) as caught:
        bundled.render([USER, called({"name": "now", "arguments": text})])
    assert str(caught.value).startswith("messages[1].tool_calls[0].function.arguments ")


def test_a_call_that_was_rendered_is_read_back(bundled):
    prompt = bundled.render([USER, CALL | {"content": "Let me see."}], add_generation_prompt=False)
    turn = prompt.rpartition("</think>")[2].removesuffix("<|im_end|>\n")
    output = ChatOutput(reasoning=False, tools=TOOLS)
    first, *rest = output.feed(turn) + output.finish()
    assert first == Content("\n\nLet me see.")
    text = "".join(piece.text for piece in rest if isinstance(piece, ToolCallArguments))
    assert json.loads(text) == CALL["tool_calls"][0]["function"]["arguments"]


@pytest.mark.parametrize(
    ("arguments", "keeps_reasoning", "whole"),
    [
        ({}, True, True),
        ({"enable_thinking": True}, True, True),
        ({"enable_thinking": True}, False, False),
        ({"enable_thinking": True, "preserve_thinking": False}, True, False),
        ({"preserve_thinking": False}, True, False),
        ({"reasoning_effort": "high"}, True, True),
    ],
)
@pytest.mark.parametrize("tools", [None, TOOLS])
def test_which_settings_keep_the_prompt_of_a_conversation_whole(bundled, arguments, keeps_reasoning, whole, tools):
    """The second prompt begins with the first and its answer, so that all of it can come from a prefix cache."""
    first = bundled.render([USER], tools=tools, **arguments)
    thinks = starts_in_reasoning(first)
    written = ("weather\n</think>\n\n" if thinks else "") + "It rains."
    said = {"role": "assistant", "content": "\n\nIt rains."}
    if thinks and keeps_reasoning:
        said["reasoning_content"] = "weather\n"
    second = bundled.render([USER, said, USER], tools=tools, **arguments)
    assert second.startswith(first + written + "<|im_end|>\n") == whole
    assert second.startswith(first[: first.index("<think>")])


def test_arguments_reach_the_template_unchanged(tmp_path):
    template = template_of(tmp_path, "{{ enable_thinking }} {{ reasoning_effort }} {{ mine | tojson }} {{ other }}.")
    values = {"enable_thinking": False, "reasoning_effort": "low", "mine": {"a": [1, None, "é"]}}
    assert template.render([USER], **values) == 'False low {"a": [1, null, "é"]} .'


def test_a_name_of_the_request_is_no_template_argument(bundled):
    with pytest.raises(ChatError, match="'messages' is set by the request itself"):
        bundled.render([USER], messages=[])


@pytest.mark.parametrize(
    ("messages", "arguments", "wrong"),
    [
        ([], {}, "messages is empty"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], {}, "reads text only"),
        ([{"role": "robot", "content": "x"}], {}, 'unknown role "robot"'),
        ([USER, {"role": "system", "content": "x"}], {}, "only the first may be one"),
        ([USER], {"reasoning_effort": "max"}, 'reasoning_effort is "max"; wanted one of none, low'),
        ([USER], {"a": object()}, "chat_template_kwargs.a is a object"),
        ([USER], {"continue_final_message": True}, "needs add_generation_prompt: false"),
        ([CALL], {"continue_final_message": True, "add_generation_prompt": False}, "has no text to go on with"),
    ],
)
def test_what_is_wrong_with_a_request_is_said(bundled, messages, arguments, wrong):
    with pytest.raises(ChatError, match=wrong):
        bundled.render(messages, **arguments)


@pytest.mark.parametrize(
    ("ending", "reasoning"),
    [("<think>", True), ("<think>\n", True), ("<think>\n\n</think>\n\n", False), ("assistant\n", False), ("", False)],
)
def test_whether_the_prompt_ends_inside_reasoning(ending, reasoning):
    assert starts_in_reasoning("<think>quoted by the user\n" + ending) == reasoning


def test_a_continued_message_may_have_opened_reasoning(bundled):
    said = {"role": "assistant", "content": "<think>\nfirst, "}
    prompt = bundled.render([USER, said], add_generation_prompt=False, continue_final_message=True)
    assert not starts_in_reasoning(prompt)
    assert starts_in_reasoning(prompt, continued=said["content"])
    assert not starts_in_reasoning(prompt, continued=said["content"] + "</think>done")


@pytest.mark.parametrize("arguments", [{}, {"enable_thinking": True}, {"reasoning_effort": "none"}])
def test_the_bundled_prompt_says_where_the_answer_begins(bundled, arguments):
    assert starts_in_reasoning(bundled.render([USER], **arguments)) == ("enable_thinking" in arguments)


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% for i in range(9) %}{{ f(n + 1) }}{% endfor %}{% endmacro %}{{ f(0) }}",
        "{% for a in range(1000) %}{{ 'x' * 1000 }}{% endfor %}",
        "{{ 'x' * 100000000000 }}",
        "{{ 100000000000 * [1] }}",
        "{{ 10 ** 100000 }}",
        "{% set ns = namespace(x='x') %}{% for a in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x=9) %}{% for a in range(99) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    ],
)
def test_a_template_that_does_too_much_is_stopped(tmp_path, source):
    template = template_of(tmp_path, source, Limits(steps=2000, characters=10_000))
    with pytest.raises(ChatError, match=r"stopped: (more than|a text of|a number of)|RecursionError"):
        template.render([USER])


def test_a_template_has_only_so_many_seconds(tmp_path):
    template = template_of(tmp_path, "{% for a in range(9) %}{{ a }}{% endfor %}", Limits(seconds=-1.0))
    with pytest.raises(ChatError, match="not done after -1 seconds"):
        template.render([USER])


def test_each_rendering_has_its_own_budget(tmp_path):
    template = template_of(tmp_path, "{% for a in range(900) %}x{% endfor %}", Limits(steps=1000, characters=1000))
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda _: template.render([USER]), range(40))) == {"x" * 900}


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__ }}{{ messages.__class__.__mro__ }}",
        "{{ ''.format.__globals__.x }}",
        "{{ messages.append(1) }}",
        "{{ namespace(__class__=1) }}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ range(1000000) }}",
        "{{ messages[0].content.x.y }}",
        "{{ 1 / 0 }}",
        "{{ tools.a.b }}",
    ],
)
def test_a_template_reaches_nothing_and_its_faults_are_told(tmp_path, source):
    with pytest.raises(ChatError, match=r"the chat template (refuses|fails on) the request"):
        template_of(tmp_path, source).render([USER])


@pytest.mark.parametrize(
    ("files", "wrong"),
    [
        ({}, "no chat template"),
        ({"chat_template.jinja": b"{% if %}"}, "line 1: "),
        ({"chat_template.jinja": b"a\n{{ x | nofilter }}"}, "line 2: "),
        ({"chat_template.jinja": b"\xff"}, "not valid UTF-8 at byte 0"),
        ({"chat_template.jinja": b"x" * 2**21}, "exceed the limit"),
        ({"tokenizer_config.json": b"{"}, "not valid JSON"),
        ({"tokenizer_config.json": b'{"chat_template": 5}'}, "wanted a string or a list"),
        ({"tokenizer_config.json": b'{"chat_template": [{"name": "a"}]}'}, "needs a name and a template"),
        ({"tokenizer_config.json": b'{"chat_template": [{"name": "a", "template": ""}]}'}, "is named 'default'"),
    ],
)
def test_a_folder_without_a_template_that_works_is_refused(tmp_path, files, wrong):
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(TextError, match=wrong):
        ChatTemplate.read(tmp_path)


def test_the_template_s_own_file_comes_first(tmp_path):
    (tmp_path / "chat_template.json").write_text('{"chat_template": "third"}')
    assert ChatTemplate.read(tmp_path).render([USER]) == "third"
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "second", "eos_token": "E"}')
    assert ChatTemplate.read(tmp_path).render([USER]) == "second"
    assert template_of(tmp_path, "first{{ eos_token }}").render([USER]) == "firstE"


def test_tools_choose_their_template(tmp_path):
    folder = with_template(tmp_path / "named", NAMED)
    template = ChatTemplate.read(folder)
    assert template.render([USER]).startswith("plain ")
    assert template.render([USER], tools=[WEATHER]) == "tools " + json.dumps([WEATHER])


def test_a_converted_pair_keeps_its_template(tmp_path, bundled):
    target, draft = write_pair(tmp_path)
    shutil.copy(BUNDLED / "chat_template.jinja", target)
    (target / "tokenizer_config.json").write_text('{"eos_token": "<|im_end|>", "chat_template": "unused"}')
    assert convert(["--target", str(target), "--draft", str(draft), "--out", str(tmp_path / "out")]) == 0
    template = ChatTemplate.read(tmp_path / "out" / "target")
    assert template.render([USER, CALL], tools=TOOLS) == bundled.render([USER, CALL], tools=TOOLS)
    assert template.special_tokens == {"eos_token": "<|im_end|>"} and not bundled.special_tokens


def test_call_texts_of_the_tests_are_what_the_template_writes(bundled):
    prompt = bundled.render([USER, called({"name": "get_weather", "arguments": {"city": "Köln", "note": "x"}})])
    assert call_text("get_weather", {"city": "Köln", "note": "x"}) in prompt
