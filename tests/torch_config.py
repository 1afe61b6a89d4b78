"""Passes configurations through transformers' classes. Needs transformers; no test imports this file.

    python torch_config.py IN.json OUT.json

IN holds a list of `config.json` mappings; OUT the mappings that transformers writes after reading them.
"""

import json
import pathlib
import sys
import tempfile

from transformers import Qwen3_5Config, Qwen3_5TextConfig, Qwen3Config

CLASSES = {"qwen3_5": Qwen3_5Config, "qwen3_5_text": Qwen3_5TextConfig, "qwen3": Qwen3Config}


def through(config: dict) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "config.json")
        path.write_text(json.dumps(config))
        CLASSES[config["model_type"]].from_pretrained(folder).save_pretrained(folder)
        return json.loads(path.read_text())


if __name__ == "__main__":
    source, destination = map(pathlib.Path, sys.argv[1:])
    destination.write_text(json.dumps([through(config) for config in json.loads(source.read_text())]))
