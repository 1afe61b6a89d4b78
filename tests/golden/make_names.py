"""List every weight that transformers gives the full-size target: name and shape, from the meta device.

Run in the environment with torch and transformers:
    .venv-peers/bin/python tests/golden/make_names.py tests/golden/qwen3_8_27b_names.json.gz
"""

import gzip
import json
import sys
from pathlib import Path

import torch
import transformers
from transformers import Qwen3_5Config, Qwen3_5ForConditionalGeneration

CONFIG = Path(__file__).parent / "configs" / "qwen3.8-27b.json"


def main(out: str) -> None:
    config = Qwen3_5Config(**json.loads(CONFIG.read_text()))
    with torch.device("meta"):
        model = Qwen3_5ForConditionalGeneration(config)
    content = {
        "transformers": transformers.__version__,
        "class": type(model).__name__,
        "tensors": {name: list(tensor.shape) for name, tensor in sorted(model.state_dict().items())},
    }
    # A fixed time and no file name make equal content equal bytes.
    Path(out).write_bytes(gzip.compress(json.dumps(content, indent=0).encode(), mtime=0))


if __name__ == "__main__":
    main(sys.argv[1])
