"""A tiny random pair with a tokenizer, in Hugging Face folders and converted."""

import dataclasses
import functools
from pathlib import Path

from tokenizers import Tokenizer

from convert.cli import main as convert
from dspine_jax.config import DrafterConfig, TargetConfig
from dspine_jax.training.corpus import END_OF_TEXT, MASK, train_tokenizer
from dspine_jax.training.export import write_drafter, write_target
from tests.tiny import random_drafter, random_target, tiny_drafter_config, tiny_target_config

VOCAB = 300
END = VOCAB - 2  # the tokenizer's special tokens are its last
PROMPT = "def add(left, right):\n    return"


@dataclasses.dataclass(frozen=True)
class TextPair:
    """Folders of one pair. Its weights are random: what it says is noise, but the same noise every time."""

    target: Path
    draft: Path
    converted: Path
    target_config: TargetConfig
    drafter_config: DrafterConfig


@functools.cache
def tiny_tokenizer(folder: Path) -> Tokenizer:
    """A byte-level tokenizer of 300 tokens."""
    corpus = folder / "corpus.py"
    corpus.write_text(
        "def add(left, right):\n    return left + right\n\n\nclass Stack:\n    def push(self, item):\n"
        "        self.items.append(item)\n\n    def pop(self):\n        return self.items.pop()\n",
        encoding="utf-8",
    )
    return train_tokenizer([corpus], VOCAB)


@functools.cache
def text_pair(session_folder: Path) -> TextPair:
    """The pair, written and converted once per session; the folder is `tmp_path_factory.getbasetemp()`."""
    root = session_folder / "text-pair"
    root.mkdir()
    # As few layers as there are kinds: these tests are about text, and every layer is compiled.
    target_config = tiny_target_config(
        vocab_size=VOCAB,
        eos_token_ids=(END,),
        num_hidden_layers=2,
        layer_types=("linear_attention", "full_attention"),
    )
    drafter_config = tiny_drafter_config(
        target_config, num_hidden_layers=1, layer_types=("sliding_attention",), target_layer_ids=(0,)
    )
    tokenizer = tiny_tokenizer(root)
    assert tokenizer.token_to_id(END_OF_TEXT) == END and tokenizer.token_to_id(MASK) == drafter_config.mask_token_id
    write_target(root / "target", target_config, random_target(target_config, 1))
    write_drafter(root / "draft", drafter_config, random_drafter(drafter_config, 2))
    tokenizer.save(str(root / "target" / "tokenizer.json"))
    folders = [
        "--target",
        str(root / "target"),
        "--draft",
        str(root / "draft"),
        "--out",
        str(root / "converted"),
    ]
    assert convert(folders) == 0
    return TextPair(root / "target", root / "draft", root / "converted", target_config, drafter_config)
