"""The web page, the server and the engine together, with the bundled pair."""

import collections
import time

import pytest
from playwright.sync_api import expect

import dspine_jax
from serve.chat import ChatTemplate
from serve.engine import Engine, EngineConfig, Request
from serve.http.app import create_app
from serve.http.model import Parts, ServedModel
from serve.http.settings import Settings
from serve.text import TextModel
from tests.browser import chromium, clean_page
from tests.chat_engine import ASSETS
from tests.engine_bench import quick_compilation
from tests.page_server import serving

QUESTION = "import os\nimport sys"
NEW = 40


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def parts(browser):  # without one, nothing is compiled
    pair = dspine_jax.load_hf(target=ASSETS / "target", draft=ASSETS / "draft", dtype="float32")
    with quick_compilation(), Engine(pair, EngineConfig(context=4096, slots=1)) as engine:
        yield Parts(engine, TextModel.read(ASSETS / "target"), ChatTemplate.read(ASSETS / "target"))


@pytest.fixture(scope="module")
def page(browser, parts):
    app = create_app(ServedModel("tiny-pair", parts), Settings())
    with serving(app) as url, clean_page(browser, url) as opened:
        yield opened


def test_the_page_shows_the_engine_s_tokens(parts, page):
    assert parts.template is not None
    prompt = parts.text.encode(parts.template.render([{"role": "user", "content": QUESTION}], enable_thinking=False))
    result = parts.engine.submit(Request(prompt, NEW)).result()
    page.get_by_label("Thinking").uncheck()
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("Max tokens").fill(str(NEW))
    page.get_by_label("Message", exact=True).fill(QUESTION)
    page.keyboard.press("Enter")
    expect(page.locator(".facts")).to_contain_text(f"{NEW} tokens · prompt of {len(prompt)}", timeout=30_000)
    text = parts.text.tokenizer.decode(result.tokens.tolist())
    assert page.locator(".answer > .parsed > .text").evaluate("x => x.textContent") == text
    page.get_by_label("Colour by origin").check()
    shown = page.locator(".tokens .token")
    assert "".join(shown.all_text_contents()) == text
    origins = [origin.name.lower() for origin in result.origins]
    assert shown.evaluate_all("all => all.map(x => x.classList[1])") == origins
    counts = collections.Counter(origins)
    assert {name: int(page.locator(f"#count-{name}").inner_text()) for name in counts} == counts
    length = 1 + sum(result.accepted) / len(result.accepted)
    expect(page.locator("#tokens-per-cycle")).to_have_text(f"{length:.2f}")


def test_stop_frees_the_slot(parts, page):
    page.get_by_label("Max tokens").fill("3500")
    page.get_by_label("Message", exact=True).fill(QUESTION)
    page.keyboard.press("Enter")
    expect(page.locator(".tokens").nth(1)).not_to_be_empty(timeout=30_000)
    page.keyboard.press("Escape")
    expect(page.locator(".facts").nth(1)).to_contain_text("stopped")
    end = time.monotonic() + 10
    while not parts.engine.stats().finished.get("cancelled") and time.monotonic() < end:
        time.sleep(0.01)
    stats = parts.engine.stats()
    assert (stats.running, stats.finished.get("cancelled"), stats.compilations) == (0, 1, 0)
