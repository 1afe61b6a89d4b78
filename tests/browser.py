"""A real browser for tests of the web page, where one is installed."""

import contextlib
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
# What the browser itself says of a response with a bad status.
OF_STATUS = "Failed to load resource"


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """Skips the test where there is none."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip("no Chromium to show the page: install it, on Debian with `apt-get install chromium`")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@contextlib.contextmanager
def clean_page(browser: Browser, url: str) -> Iterator[Page]:
    """The page at an address; afterwards, no script may have failed and no policy may have been broken."""
    faults: list[str] = []
    with browser.new_context(viewport={"width": 1200, "height": 760}) as context:
        context.set_default_timeout(10_000)
        page = context.new_page()
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
        page.goto(url)
        yield page
    assert [fault for fault in faults if not fault.startswith(OF_STATUS)] == []
