"""Renders conversations with transformers' apply_chat_template. Needs transformers; no test imports this file.

    python torch_chat_template.py IN.json OUT.json

IN holds a list of {"folder", "messages", "tools", "arguments"}; OUT the texts in the same order.
"""

import json
import pathlib
import sys

from transformers import PreTrainedTokenizerFast

if __name__ == "__main__":
    source, destination = map(pathlib.Path, sys.argv[1:])
    tokenizers = {}
    texts = []
    for job in json.loads(source.read_text(encoding="utf-8")):
        folder = job["folder"]
        if folder not in tokenizers:
            tokenizers[folder] = PreTrainedTokenizerFast.from_pretrained(folder)
        texts.append(
            tokenizers[folder].apply_chat_template(
                job["messages"], tools=job["tools"], tokenize=False, **job["arguments"]
            )
        )
    destination.write_text(json.dumps(texts), encoding="utf-8")
