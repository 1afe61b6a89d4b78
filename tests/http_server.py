"""A real server on a free port, in a thread of the test's process."""

import contextlib
import functools
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx

from serve.chat import ChatTemplate
from serve.http.app import create_app
from serve.http.lifecycle import Server, listen
from serve.http.model import Parts, ServedModel, ServingEngine
from serve.http.settings import Settings
from serve.text import TextModel
from tests.text_pair import tiny_tokenizer

NAME = "tiny"
PATIENCE = 30.0  # seconds; nothing takes as long

TEMPLATE = """\
{%- for message in messages %}{{ message.role }}: {{ message.content }}
{% endfor %}
{%- if tools %}tools: {% for tool in tools %}{{ tool.function.name }} {% endfor %}
{% endif %}
{%- if effort is defined %}effort: {{ effort }}
{% endif %}
{%- if add_generation_prompt %}assistant: {% if enable_thinking %}<think>
{% endif %}{% endif %}"""


@functools.cache
def text_model(folder: Path) -> TextModel:
    """The tiny tokenizer, read as a server reads it."""
    made = folder / "http-text"
    made.mkdir()
    tiny_tokenizer(made).save(str(made / "tokenizer.json"))
    return TextModel.read(made)


@functools.cache
def chat_template(folder: Path) -> ChatTemplate:
    """Plain lines; `enable_thinking` opens reasoning."""
    made = folder / "http-template"
    made.mkdir()
    (made / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    return ChatTemplate.read(made)


class Running:
    """One server."""

    def __init__(self, server: Server, thread: threading.Thread, model: ServedModel, port: int):
        self.server, self.thread, self.model, self.port = server, thread, model, port
        self.url = f"http://127.0.0.1:{port}"

    def http(self, **options) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=PATIENCE, trust_env=False, **options)

    def leave(self) -> None:
        self.server.should_exit = True
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()


@contextlib.contextmanager
def served(
    engine: ServingEngine | None, folder: Path, settings: Settings | None = None, *, text: TextModel | None = None
) -> Iterator[Running]:
    """A running server; without an engine it is still loading."""
    model = ServedModel(NAME)
    if engine is not None:
        model.open(Parts(engine, text or text_model(folder), chat_template(folder)))
    chosen = settings or Settings(drain_timeout=1.0)
    socket = listen("127.0.0.1", 0)
    server = Server(create_app(model, chosen), model, chosen)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [socket]}, daemon=True)
    running = Running(server, thread, model, socket.getsockname()[1])
    thread.start()
    try:
        yield running
    finally:
        running.leave()
