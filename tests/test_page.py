"""The web page in Chromium, against a server that streams what each test wrote down."""

import json
import threading

import pytest
from playwright.sync_api import Page, expect

from tests.browser import chromium, clean_page
from tests.page_server import Answer, StandIn, as_json, chunk, running, tail

FIGURES = {
    "mean_acceptance_length": 2.5,
    "draft_acceptance_rate": 0.4375,
    "acceptance_histogram": [1, 0, 1],
    "num_spec_steps": 4,
    "num_accepted_draft_tokens": 7,
    "num_draft_tokens": 16,
    "num_spec_tokens": 4,
}
SNEAKY = '<img src=x onerror="window.pwned=1"><script>window.pwned=1</script>&lt;b&gt;</pre>'


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


@pytest.fixture
def app():
    with running(StandIn()) as server:
        yield server


@pytest.fixture
def page(browser, app):
    with clean_page(browser, app.url) as opened:
        yield opened


def ask(page: Page, text: str) -> None:
    page.get_by_label("Message").fill(text)
    page.keyboard.press("Enter")


def idle(page: Page) -> None:
    """Waits for the end of the answer."""
    expect(page.get_by_role("button", name="Send")).to_be_visible()


def failure(status: int, body: bytes, *headers: tuple[bytes, bytes]) -> Answer:
    return Answer([body], status, ((b"content-type", b"application/json"), *headers))


def test_text_is_shown_as_it_comes_and_thinking_is_folded(page, app):
    gate = threading.Event()
    thought = chunk({"reasoning_content": "Let me see."}, "bd", ["Let me", " see."])
    app.answers.append(Answer([thought, chunk({"content": "One"}), gate, chunk({"content": " two"}), *tail()]))
    ask(page, "Count!")
    answer = page.get_by_role("article", name="Answer")
    expect(answer.locator(".text").last).to_have_text("One")
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    expect(answer).to_have_attribute("aria-busy", "true")
    expect(page.get_by_label("Message")).to_have_value("")
    gate.set()
    expect(answer.locator(".text").last).to_have_text("One two")
    idle(page)
    expect(answer).to_have_attribute("aria-busy", "false")
    expect(answer.locator(".thinking .text")).to_be_hidden()
    page.get_by_text("Thought", exact=True).click()
    expect(answer.locator(".thinking .text")).to_be_visible()
    expect(answer.locator(".thinking .text")).to_have_text("Let me see.")
    assert app.requests == [
        {
            "model": "tiny-pair",
            "messages": [{"role": "user", "content": "Count!"}],
            "stream": True,
            "stream_options": {"include_usage": True},
            "token_origins": True,
            "chat_template_kwargs": {"enable_thinking": True},
        }
    ]
    assert app.keys == [None]


@pytest.mark.parametrize("how", ["button", "key"])
def test_stop_ends_the_request_and_keeps_what_is_there(page, app, how):
    app.answers += [
        Answer([chunk({"content": "so far"}, "b"), threading.Event()]),
        Answer([chunk({"content": "again"}, "b"), *tail()]),
    ]
    ask(page, "Tell me")
    expect(page.locator(".answer .text").last).to_have_text("so far")
    if how == "button":
        page.get_by_role("button", name="Stop").click()
    else:
        page.keyboard.press("Escape")
    assert app.disconnected.wait(5)
    idle(page)
    expect(page.locator(".facts")).to_have_text("1 token · stopped")
    ask(page, "Go on")
    expect(page.locator(".answer .text").last).to_have_text("again")
    assert [message["content"] for message in app.requests[1]["messages"]] == ["Tell me", "so far", "Go on"]


def test_each_token_has_the_colour_of_its_origin(page, app):
    app.answers.append(
        Answer(
            [
                chunk({"reasoning_content": "Hm"}, "b", ["Hm"]),
                chunk({"content": "a b"}, "ddc", ["</think>", "a", " b"]),
                chunk({"content": " c\nd"}, "dddb", [" c", "\n", "d", ""]),
                *tail(),
            ]
        )
    )
    ask(page, "Colours")
    idle(page)
    expect(page.locator(".tokens")).to_be_hidden()
    page.get_by_label("Colour by origin").check()
    expect(page.locator(".parsed")).to_be_hidden()
    found = page.locator(".tokens .token").evaluate_all("all => all.map(x => [x.textContent, x.className])")
    origins = ["bonus", "draft", "draft", "correction", "draft", "draft", "draft", "bonus"]
    texts = ["Hm", "</think>", "a", " b", " c", "\n", "d", ""]
    assert found == [[text, f"token {origin}"] for text, origin in zip(texts, origins, strict=True)]
    shown = {
        page.locator(f".tokens .{name}").first.evaluate("x => getComputedStyle(x).backgroundColor") for name in origins
    }
    assert len(shown) == 3


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_on_every_colour(page, app, scheme):
    app.answers.append(Answer([chunk({}, "bdc", ["b", "d", "c"]), *tail()]))
    page.emulate_media(color_scheme=scheme)
    ask(page, "Contrast")
    idle(page)
    page.get_by_label("Colour by origin").check()
    for selector in (".tokens .draft", ".tokens .correction", ".tokens .bonus", ".facts", "#keys", "#model"):
        assert contrast(page, selector) >= 4.5, selector


def contrast(page: Page, selector: str) -> float:
    """Of a text and what is behind it, as the accessibility guidelines for the web define it."""
    text, behind = page.locator(selector).first.evaluate(
        """node => {
          const solid = x => x && !/, 0\\)$|transparent/.test(getComputedStyle(x).backgroundColor);
          let ground = node;
          while (!solid(ground)) ground = ground.parentElement;
          const numbers = text => text.match(/[0-9.]+/g).slice(0, 3).map(Number);
          return [numbers(getComputedStyle(node).color), numbers(getComputedStyle(ground).backgroundColor)];
        }"""
    )

    def luminance(colour: list[float]) -> float:
        parts = [x / 255 for x in colour]
        linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
        return sum(weight * x for weight, x in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    low, high = sorted((luminance(text), luminance(behind)))
    return (high + 0.05) / (low + 0.05)


def test_the_meter_estimates_and_then_shows_the_server_s_figures(page, app):
    gate = threading.Event()
    usage = {
        "prompt_tokens": 40,
        "completion_tokens": 9,
        "total_tokens": 49,
        "prompt_tokens_details": {"cached_tokens": 32},
    }
    app.answers.append(
        Answer(
            [
                chunk({"content": "a"}, "b"),
                chunk({"content": "bcde"}, "dddb", ["b", "c", "d", "e"]),
                chunk({"content": "f"}, "c"),
                gate,
                chunk({"content": "ghi"}, "ddd", ["g", "h", "i"]),
                *tail(usage=usage, figures=FIGURES),
            ]
        )
    )
    ask(page, "Measure")
    # Cycles of 3 and 0 accepted drafts, each with a token of the target's; the first token belongs to none.
    expect(page.locator("#tokens-per-cycle")).to_have_text("2.50")
    expect(page.locator("#rate-name")).to_have_text("of the text drafted")
    expect(page.locator("#accept-rate")).to_have_text("50 %")
    expect(page.locator("#cycles g")).to_have_count(2)
    gate.set()
    idle(page)
    expect(page.locator("#rate-name")).to_have_text("drafts accepted")
    expect(page.locator("#accept-rate")).to_have_text("44 %")
    assert [page.locator(f"#count-{name}").inner_text() for name in ("draft", "correction", "bonus")] == ["6", "1", "2"]
    bars = page.locator("#cycles g").evaluate_all(
        "all => all.map(g => [...g.querySelectorAll('rect')].map(r => r.className.baseVal))"
    )
    assert bars == [["draft", "bonus"], ["draft", "correction"], ["draft"]]
    facts = page.locator(".facts").inner_text()
    assert facts.startswith("9 tokens · prompt of 40, 32 of them cached · ")
    assert facts.endswith(" tokens/s · 2.50 tokens per cycle")


ERRORS = {
    "refused": (
        failure(400, as_json({"error": {"message": f"no such field {SNEAKY}", "type": "invalid_request_error"}})),
        f"no such field {SNEAKY} (HTTP 400)",
    ),
    "busy": (
        failure(503, as_json({"error": {"message": "64 requests wait already."}}), (b"retry-after", b"7")),
        "64 requests wait already. (HTTP 503; try again in 7 s)",
    ),
    "no JSON": (failure(502, b"<h1>Bad gateway</h1>"), "<h1>Bad gateway</h1> (HTTP 502)"),
    "in the stream": (
        Answer([b'data: {"error": {"message": "its numbers are not finite"}}\n\n']),
        "its numbers are not finite",
    ),
    "cut": (Answer([b": waiting\n\n"]), "The connection ended before the answer was complete."),
    "garbage": (Answer([b"data: {no\n\n"]), "The server sent something that is no JSON."),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_told_and_the_message_is_not_lost(page, app, name):
    answer, message = ERRORS[name]
    app.answers += [answer, Answer([chunk({"content": "fine"}, "b"), *tail()])]
    ask(page, "Try this")
    expect(page.get_by_role("alert")).to_have_text(message)
    idle(page)
    expect(page.get_by_label("Message")).to_have_value("Try this")
    page.keyboard.press("Enter")
    expect(page.locator(".answer .text").last).to_have_text("fine")
    assert app.requests[1]["messages"] == [{"role": "user", "content": "Try this"}]


def test_an_answer_that_breaks_keeps_its_beginning(page, app):
    app.answers += [Answer([chunk({"content": "half"}, "b")]), Answer([chunk({"content": "rest"}, "b"), *tail()])]
    ask(page, "Begin")
    expect(page.get_by_role("alert")).to_have_text("The connection ended before the answer was complete.")
    expect(page.locator(".answer .text").last).to_have_text("half")
    idle(page)
    ask(page, "Go on")
    expect(page.locator(".answer .text").last).to_have_text("rest")
    assert [message["content"] for message in app.requests[1]["messages"]] == ["Begin", "half", "Go on"]


def test_the_model_s_text_is_never_markup(page, app):
    call = {"index": 0, "id": SNEAKY, "type": "function", "function": {"name": SNEAKY, "arguments": SNEAKY}}
    fenced = f"{SNEAKY}\n```html\n{SNEAKY}\n```\n"
    app.answers.append(
        Answer(
            [
                chunk({"reasoning_content": SNEAKY}, "b", [SNEAKY]),
                chunk({"content": fenced}, "d", [fenced]),
                chunk({"tool_calls": [call]}),
                *tail("tool_calls"),
            ]
        )
    )
    ask(page, SNEAKY)
    idle(page)
    page.get_by_text("Thought", exact=True).click()
    page.get_by_label("Colour by origin").check()
    assert page.locator("#conversation").locator("img, script, b").count() == 0
    assert page.evaluate("window.pwned") is None
    # The question, the thought, the text and its code, the call's name and arguments, and thrice in the tokens.
    assert page.locator("#conversation").evaluate("(log, text) => log.textContent.split(text).length - 1", SNEAKY) == 9
    expect(page.locator("#message-label")).to_have_text(f"Result of {SNEAKY}")


def test_code_between_fences_is_set_as_code(page, app):
    text = "Look:\n```python\nx = [1]\n\ny\n```\nand ``` inline\n~~~\n```\n~~~\nend"
    app.answers.append(Answer([*(chunk({"content": letter}) for letter in text), *tail()]))
    ask(page, "Code")
    idle(page)
    assert page.locator(".text pre").all_inner_texts() == ["x = [1]\n\ny\n", "```\n"]
    assert page.locator(".answer .text").last.evaluate("x => x.textContent") == (
        "Look:\nx = [1]\n\ny\nand ``` inline\n```\nend"
    )


def test_tool_calls_are_shown_and_their_results_sent(page, app):
    def call(index: int, arguments: str, name: str | None = None) -> bytes:
        part: dict = {"index": index, "function": {"arguments": arguments}}
        if name:
            part |= {"id": f"call_{index}", "type": "function"}
            part["function"]["name"] = name
        return chunk({"tool_calls": [part]})

    pieces = [call(0, "", "weather"), call(0, '{"city": "Pa'), call(0, 'ris"}'), call(1, "{}", "time")]
    done = Answer([chunk({"content": "Rain at noon."}, "b"), *tail()])
    refused = failure(503, as_json({"error": {"message": "Busy."}}))
    app.answers += [Answer([chunk({"content": "Wait."}), *pieces, *tail("tool_calls")]), refused, done]
    tool = {"type": "function", "function": {"name": "weather"}}
    page.get_by_label("Tools, a JSON list").fill(json.dumps([tool]))
    ask(page, "Weather?")
    idle(page)
    assert page.locator(".call p").all_inner_texts() == ["Calls weather", "Calls time"]
    assert json.loads(page.locator(".call pre").first.inner_text()) == {"city": "Paris"}
    for name, result in {"weather": "rain", "time": "12:00"}.items():
        page.get_by_label(f"Result of {name}").fill(result)
        page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_have_text("Busy. (HTTP 503)")
    expect(page.get_by_label("Result of time")).to_have_value("12:00")
    page.keyboard.press("Enter")
    expect(page.locator(".answer .text").last).to_have_text("Rain at noon.")
    expect(page.locator("#message-label")).to_have_text("Message")
    assert app.requests[-1]["tools"] == [tool]
    assert app.requests[-1]["messages"][1:] == [
        {
            "role": "assistant",
            "content": "Wait.",
            "tool_calls": [
                {"id": "call_0", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}},
                {"id": "call_1", "type": "function", "function": {"name": "time", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "call_0", "content": "rain"},
        {"role": "tool", "tool_call_id": "call_1", "content": "12:00"},
    ]


def test_settings_are_sent_and_wrong_ones_are_not(page, app):
    app.answers.append(Answer([chunk({"content": "ok"}, "b"), *tail("length")]))
    page.get_by_label("Temperature").fill("0.7")
    page.get_by_label("Max tokens").fill("12")
    page.get_by_label("Seed").fill("5")
    page.get_by_label("Thinking").uncheck()
    page.get_by_label("System prompt").fill("Be short.")
    page.get_by_label("Tools, a JSON list").fill("{")
    ask(page, "Settings")
    assert page.evaluate("document.querySelector('#options').checkValidity()") is False
    expect(page.get_by_label("Message")).to_have_value("Settings")
    page.get_by_label("Tools, a JSON list").fill("")
    ask(page, "Settings")
    expect(page.locator(".facts")).to_contain_text("cut at the limit of tokens")
    (request,) = app.requests
    assert (request["temperature"], request["max_tokens"], request["seed"]) == (0.7, 12, 5)
    assert request["chat_template_kwargs"] == {"enable_thinking": False}
    assert [message["role"] for message in request["messages"]] == ["system", "user"]
    assert "tools" not in request


def test_the_key_is_asked_for_and_kept_nowhere(page, app):
    app.key = "secret"
    page.reload()
    expect(page.get_by_role("status")).to_have_text("The API key is missing or wrong. (HTTP 401)")
    field = page.get_by_label("API key")
    expect(field).to_be_focused()
    field.fill("secret")
    field.press("Tab")
    expect(page.locator("#model")).to_have_text("tiny-pair")
    app.answers.append(Answer([chunk({"content": "in"}, "b"), *tail()]))
    ask(page, "Hello")
    expect(page.locator(".answer .text").last).to_have_text("in")
    assert app.keys == ["Bearer secret"]
    assert page.evaluate("[localStorage.length, sessionStorage.length, document.cookie]") == [0, 0, ""]
    page.reload()
    expect(page.get_by_label("API key")).to_have_value("")


def test_a_reload_in_the_middle_of_an_answer_begins_anew(page, app):
    app.answers += [
        Answer([chunk({"content": "never ends"}, "b"), threading.Event()]),
        Answer([chunk({"content": "new"}, "b"), *tail()]),
    ]
    ask(page, "First")
    expect(page.locator(".answer .text").last).to_have_text("never ends")
    page.reload()
    assert app.disconnected.wait(5)
    expect(page.locator("article")).to_have_count(0)
    ask(page, "Second")
    expect(page.locator(".answer .text").last).to_have_text("new")
    assert app.requests[1]["messages"] == [{"role": "user", "content": "Second"}]
    page.get_by_role("button", name="New chat").click()
    expect(page.locator("article")).to_have_count(0)


def test_the_page_waits_for_a_server_that_warms_up(page, app):
    app.ready = False
    page.reload()
    expect(page.get_by_role("status")).to_have_text("not ready: compiling …")
    expect(page.locator("#model")).to_have_text("")
    app.ready = True
    expect(page.locator("#model")).to_have_text("tiny-pair")
    expect(page.get_by_role("status")).to_have_text("")


def test_keys_and_names_and_a_phone_s_width(page, app):
    box = page.get_by_label("Message")
    expect(box).to_be_focused()
    box.press_sequentially("one")
    box.press("Shift+Enter")
    box.press_sequentially("two")
    expect(box).to_have_value("one\ntwo")
    box.fill("   ")
    box.press("Enter")
    assert app.requests == []
    nameless = "all => all.filter(x => !x.labels?.length && !x.textContent.trim()).map(x => x.outerHTML)"
    assert page.locator("input, textarea, button, summary").evaluate_all(nameless) == []
    page.set_viewport_size({"width": 360, "height": 640})
    app.answers.append(Answer([chunk({"content": "long" * 200 + "\n```\n" + "code" * 200}, "b"), *tail()]))
    ask(page, "Narrow")
    idle(page)
    for colours in (False, True):
        page.get_by_label("Colour by origin").set_checked(colours)
        assert page.evaluate("document.documentElement.scrollWidth") == 360
        expect(page.get_by_role("button", name="Send")).to_be_in_viewport()
