"""The whole soak: plain answers first, then clients, faults, a kill in the middle, and a drain at the end."""

import argparse
import random
import tempfile
import threading
import time
from pathlib import Path

from convert import cli as convert_cli
from dspine_jax.generate import generate_plain
from dspine_jax.load import load
from serve.text import Detokenizer, TextModel
from tests.configs import TINY_PAIR
from tests.soak.clients import MAX_BODY, Answer, Client
from tests.soak.server import ServerProcess
from tests.soak.tally import Tally

PROMPTS = [
    "def add(left, right):\n    return",
    "import os\n\n\ndef walk(folder):",
    "class Stack:\n    def __init__(self):\n        self.items = []\n",
    "for index in range(10):\n    print(",
    "# é, 語 and 🙂\nnames = [",
    "x",
    "def read(path):\n    with open(path) as stream:\n        for line in stream:\n            yield line.strip()\n\n"
    * 3,
]
COUNTS = (1, 9, 40)
Wanted = dict[tuple[str, int], Answer]  # by prompt and number of tokens


def convert(folder: Path) -> Path:
    """The bundled pair as float32."""
    out = folder / "tiny"
    arguments = ["--target", str(TINY_PAIR / "target"), "--draft", str(TINY_PAIR / "draft"), "--out", str(out)]
    assert convert_cli.main([*arguments, "--dtype", "float32"]) == 0
    return out


def plain_answers(model: Path) -> Wanted:
    """What plain decoding says to every prompt, for every number of tokens."""
    pair, text = load(model), TextModel.read(model / "target")
    stops = tuple(dict.fromkeys((*pair.target_config.eos_token_ids, *text.eos_token_ids)))
    wanted = {}
    for count in COUNTS:
        prompts = [text.encode(prompt) for prompt in PROMPTS]
        done = generate_plain(pair, prompts, max_new_tokens=count, stop_token_ids=stops)
        for prompt, tokens, finish in zip(PROMPTS, done.tokens, done.finish_reason, strict=True):
            detokenizer = Detokenizer(text, hidden=stops)
            shown = "".join(detokenizer.feed(int(token)) for token in tokens) + detokenizer.finish()
            wanted[prompt, count] = (shown, finish)
    return wanted


def soak(folder: Path, *, seconds: float, clients: int, slots: int = 8, seed: int = 0) -> dict:
    """Figures of the run; `faults` is empty if all went well."""
    model = convert(folder)
    limits = {"--slots": slots, "--context": 256, "--chunk": 64, "--queue-limit": 4, "--queue-timeout": 30}
    limits |= {"--max-body": MAX_BODY, "--drain-timeout": 60}
    arguments = [str(model), *(str(word) for item in limits.items() for word in item)]
    wanted = plain_answers(model)
    with ServerProcess(arguments) as server:
        return _soak(server, wanted, seconds, clients, seed)


def _soak(server: ServerProcess, wanted: Wanted, seconds: float, clients: int, seed: int) -> dict:
    tally = Tally()
    seeds = [random.Random(f"{seed}/{i}").randrange(2**32) for i in range(clients)]
    threads = [threading.Thread(target=Client(server.url, "tiny", wanted, tally, each).run) for each in seeds]
    for thread in threads:
        thread.start()
    time.sleep(seconds / 3)
    tally.down = True
    server.kill()
    killed = time.monotonic()
    server.start()
    restart = time.monotonic() - killed
    tally.down = False
    memory = []
    for _ in range(5):
        time.sleep(seconds * 2 / 3 / 5)
        memory.append(server.resident_bytes())
    tally.over = True
    for thread in threads:
        thread.join()
    metrics = server.metrics()
    deadline = time.monotonic() + 30
    while any(metrics[name] for name in AT_REST) and time.monotonic() < deadline:
        time.sleep(0.2)  # who left a moment ago may still have a slot
        metrics = server.metrics()
    faults = list(tally.faults)
    faults += [f"{name} is {metrics[name]}, wanted 0" for name in AT_REST if metrics[name]]
    faults += _drain(server, wanted)
    return {
        "seconds": seconds,  # of service; the restart is not counted
        "clients": clients,
        "outcomes": {f"{kind}: {outcome}": count for (kind, outcome), count in sorted(tally.outcomes.items())},
        "statuses": {str(status): count for status, count in sorted(tally.statuses.items())},
        "tokens": tally.tokens,
        "restart_seconds": round(restart, 1),
        "resident_mib": [round(value / 2**20) for value in memory],
        "faults": faults,
    }


AT_REST = (
    "dspine:num_requests_running",
    "dspine:num_requests_waiting",
    "dspine:kv_cache_pages_in_use",
    'dspine:compilations_total{phase="serving"}',
)


def _drain(server: ServerProcess, wanted: Wanted) -> list[str]:
    """Tells the server to leave while it answers; what went wrong."""
    longest = {key: answer for key, answer in wanted.items() if key[1] == max(COUNTS)}
    tally = Tally()
    clients = [Client(server.url, "tiny", longest, tally, seed) for seed in range(4)]
    before = _arrived(server)
    threads = [threading.Thread(target=client.attempt, args=(client.stream,)) for client in clients]
    for thread in threads:
        thread.start()
    # A client that comes later than the signal is refused, and rightly so.
    deadline = time.monotonic() + 30
    while _arrived(server) - before < len(clients) and time.monotonic() < deadline:
        time.sleep(0.001)
    status = server.leave()
    for thread in threads:
        thread.join()
    left = [f"exit status {status}, wanted 0"] if status != 0 else []
    if tally.over_with != len(clients):
        left.append(f"{tally.over_with} requests were answered or refused, wanted {len(clients)}")
    return [f"draining: {fault}" for fault in (*left, *tally.faults)]


def _arrived(server: ServerProcess) -> float:
    """Requests that the engine has ever been given."""
    counted = "dspine:num_requests_running", "dspine:num_requests_waiting", "dspine:engine_requests_total"
    return sum(value for name, value in server.metrics().items() if name.startswith(counted))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=180)
    parser.add_argument("--clients", type=int, default=16)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = soak(Path(folder), seconds=options.seconds, clients=options.clients)
    for name, value in figures.items():
        if isinstance(value, dict):
            print(f"{name}:", *(f"  {key}  {count}" for key, count in value.items()), sep="\n")
        else:
            print(f"{name}: {value}")
    return 1 if figures["faults"] else 0
