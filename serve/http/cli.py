"""`dspine serve`."""

import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence

from serve.http import logs
from serve.http.app import create_app
from serve.http.lifecycle import Server, is_loopback, listen
from serve.http.loading import open_model
from serve.http.model import ServedModel
from serve.http.options import build_parser, settings_of, sizes_of, source_of
from serve.text import TextError

LOG = logging.getLogger("dspine.http")
MEMORY_VARIABLE = "XLA_CLIENT_MEM_FRACTION"
OLD_MEMORY_VARIABLE = "XLA_PYTHON_CLIENT_MEM_FRACTION"  # JAX refuses to start with both


def main(argv: Sequence[str]) -> int:
    """Runs `dspine serve` until it is told to leave; the exit status."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    source, sizes = source_of(parser, arguments), sizes_of(parser, arguments)
    settings = settings_of(parser, arguments)
    if arguments.mem_fraction is not None:
        # JAX reads it when it first looks for devices, which nothing here has done yet.
        os.environ.pop(OLD_MEMORY_VARIABLE, None)
        os.environ[MEMORY_VARIABLE] = str(arguments.mem_fraction)
    logs.set_up()
    try:
        text, template = source.read_text()
        port = listen(arguments.host, arguments.port)
    except TextError as error:
        return _refuse(str(error))
    except OSError as error:
        return _refuse(f"cannot listen at {arguments.host} port {arguments.port}: {error.strerror or error}")
    model = ServedModel(arguments.name or source.name)
    if not is_loopback(arguments.host) and not settings.api_keys:
        LOG.warning("anybody who reaches %s may use this server: there is no API key", arguments.host)
    host, number, *_ = port.getsockname()
    address = f"http://[{host}]:{number}" if ":" in host else f"http://{host}:{number}"
    LOG.info("listening at %s", address, extra={"fields": {"url": address, "model": model.name}})

    server = Server(create_app(model, settings), model, settings)
    failures: list[BaseException] = []

    def load() -> None:
        try:
            open_model(model, source, sizes, text, template)
        except BaseException as error:
            failures.append(error)
            server.should_exit = True

    # After a drain uvicorn raises the signal again that it was told to leave by.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _leave)
    loading = threading.Thread(target=load, name="dspine-load", daemon=True)
    loading.start()
    with contextlib.suppress(SystemExit):
        server.run(sockets=[port])
    if loading.is_alive():
        # The compiler cannot be interrupted, and nothing is lost.
        logging.shutdown()
        os._exit(0)
    model.stop()
    if failures:
        return _refuse(str(failures[0]), failures[0])
    LOG.info("left")
    return 0


def _leave(*_) -> None:
    raise SystemExit(0)


def _refuse(what: str, error: BaseException | None = None) -> int:
    expected = error is None or isinstance(error, ValueError)
    if not expected:
        LOG.error("the model could not be loaded", exc_info=error)
    print(f"dspine serve: error: {what}", file=sys.stderr)
    return 1
