"""How the web page reads a stream: it may be cut anywhere."""

import pytest

from tests.browser import chromium, clean_page
from tests.page_server import Answer, StandIn, chunk, running, tail

# For each text: the events that a reader must find, however the text is cut.
STREAMS = {
    "data: a\n\ndata: b\n\n": ["message a", "message b"],
    "data: a\r\n\r\ndata: b\r\n\r\n": ["message a", "message b"],
    "data: a\r\rdata: b\r\r": ["message a", "message b"],
    "data: a\r\n\ndata: b\n\r\n": ["message a", "message b"],
    ": waiting\n\n: waiting\r\n\r\nevent: error\ndata:x\nid: 1\n\n": ["error x"],
    "data: one\r\ndata: two\r\n\r\n": ["message one\ntwo"],
    "data: one\ndata:  two\ndata\n\n\n\ndata: no end": ["message one\n two\n"],
    "event: lost\n\ndata: {é😀}\n\n": ["message {é😀}"],
}
CUTS = """
async texts => {
  const {EventParser} = await import("/page/sse.js");
  return texts.map(text => {
    const found = new Set();
    for (let i = 0; i <= text.length; i++)
      for (let j = i; j <= text.length; j++) {
        const parser = new EventParser();
        const events = [text.slice(0, i), text.slice(i, j), text.slice(j)].flatMap(part => parser.feed(part));
        found.add(JSON.stringify(events.map(event => event.type + " " + event.data)));
      }
    return [...found].map(one => JSON.parse(one));
  });
}
"""
BODY = """
async bytes => {
  const {eventsOf} = await import("/page/sse.js");
  const found = new Set();
  for (let size = 1; size <= 7; size++) {
    const body = new ReadableStream({start(out) {
      for (let at = 0; at < bytes.length; at += size) out.enqueue(new Uint8Array(bytes.slice(at, at + size)));
      out.close();
    }});
    const events = [];
    for await (const event of eventsOf(body)) events.push(event.data);
    found.add(JSON.stringify(events));
  }
  return [...found].map(one => JSON.parse(one));
}
"""


@pytest.fixture(scope="module")
def opened():
    with chromium() as browser, running(StandIn()) as app, clean_page(browser, app.url) as page:
        yield app, page


def test_events_do_not_depend_on_the_cuts(opened):
    assert opened[1].evaluate(CUTS, list(STREAMS)) == [[events] for events in STREAMS.values()]


def test_characters_do_not_depend_on_the_cuts(opened):
    text = "data: é漢😀\n\ndata: \ufeffx\r\n\r\n"
    assert opened[1].evaluate(BODY, list(text.encode())) == [["é漢😀", "\ufeffx"]]


def test_an_answer_sent_byte_by_byte(opened):
    app, page = opened
    stream = b"".join([chunk({"content": "naïve "}, "b"), chunk({"content": "漢字 😀"}, "c"), *tail()])
    app.answers.append(Answer([bytes([byte]) for byte in stream]))
    page.get_by_label("Message").fill("Bytes")
    page.keyboard.press("Enter")
    page.locator(".facts", has_text="4 tokens").wait_for()
    assert page.locator(".answer .text").last.inner_text() == "naïve 漢字 😀"
    assert page.locator(".tokens .token").all_text_contents() == ["naïve ", "漢字 😀"]
