"""`dspine chat` with an engine that says what a test wrote down."""

import json
import sys
import threading
import time
import types
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import dspine_jax
from dspine_jax.config import DrafterConfig, TargetConfig
from serve.chat_cli import cli
from serve.engine import Event, Handle, Origin, Request, RequestFailed
from serve.text import TextModel

ASSETS = Path(dspine_jax.__file__).parent / "assets" / "tiny-pair"
LETTERS = {"d": Origin.DRAFT, "c": Origin.CORRECTION, "b": Origin.BONUS}

# A step is ["text", "origin's letter"] for the tokens of one event; "wait" for a cancellation, or "fail".
type Step = Sequence[str] | str


class ScriptedEngine:
    """What `dspine chat` needs of an engine. Each request uses up one script and ends with "stop"."""

    def __init__(self, scripts: Sequence[Sequence[Step]]):
        self.scripts = list(scripts)
        self.requests: list[Request] = []
        self._text = TextModel.read(ASSETS / "target")

    def start(self, progress) -> "ScriptedEngine":
        return self

    def stop(self) -> None:
        pass

    def submit(self, request: Request) -> Handle:
        self.requests.append(request)
        handle = Handle(len(self.requests), None, lambda: None)
        threading.Thread(target=self._play, args=(self.scripts.pop(0), handle), daemon=True).start()
        return handle

    def prompt(self, index: int) -> str:
        """What the model was asked."""
        return self._text.tokenizer.decode(list(self.requests[index].prompt), skip_special_tokens=False)

    def _play(self, script: Sequence[Step], handle: Handle) -> None:
        for step in script:
            if step == "wait":
                while not handle.cancelled:
                    time.sleep(0.01)
                handle.put(Event.end("cancelled"))
                return
            if step == "fail":
                handle.put(Event.end("error", RequestFailed("its numbers are not finite")))
                return
            text, letter = step
            tokens = np.array(self._text.encode(text), np.int32)
            accepted = None if letter == "b" else len(tokens)
            handle.put(Event(tokens, (LETTERS[letter],) * len(tokens), None, accepted=accepted))
        handle.put(Event.end("stop"))


def install(engine: ScriptedEngine, patch) -> None:
    """Makes `dspine chat` read no weights and use this engine; `patch` is like `setattr`."""
    target = TargetConfig.from_hf(json.loads((ASSETS / "target" / "config.json").read_text()))
    drafter = DrafterConfig.from_hf(json.loads((ASSETS / "draft" / "config.json").read_text()))
    options = types.SimpleNamespace(tail="direct")
    pair = types.SimpleNamespace(
        dtype=None, target_config=target, drafter_config=drafter, plan=types.SimpleNamespace(options=options)
    )
    patch(cli, "load", lambda folder, dtype: pair)
    patch(cli, "Engine", lambda pair, config: engine)


if __name__ == "__main__":
    import fcntl
    import signal
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # so that its Ctrl-C reaches this process
    # Where the tests run in the background of a shell, an interrupt is ignored, and that is inherited.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    install(ScriptedEngine(json.loads(sys.argv[1])), setattr)
    sys.exit(cli.main([str(ASSETS), *sys.argv[2:]]))
