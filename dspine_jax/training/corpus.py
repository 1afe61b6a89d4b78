"""Training text: the Python standard library's source, split by file, as token ids."""

import sysconfig
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

END_OF_TEXT = "<|endoftext|>"
MASK = "<|mask|>"

# Generated tables and test data: not source that a person wrote.
EXCLUDED = (
    "test",
    "tests",
    "idle_test",
    "site-packages",
    "encodings",
    "pydoc_data",
    "lib2to3",
    "__pycache__",
)
MAX_FILE_BYTES = 400_000


def standard_library() -> Path:
    """Where the running interpreter keeps the library's source."""
    return Path(sysconfig.get_path("stdlib"))


def source_files(root: Path, held_out: Sequence[str]) -> tuple[list[Path], list[Path]]:
    """(training files, held-out files) in a stable order; a held-out name that does not exist is an error."""
    held = [root / name for name in held_out]
    missing = [str(path) for path in held if not path.is_file()]
    if missing:
        raise FileNotFoundError(f"held-out files do not exist under {root}: {', '.join(missing)}")
    files = [
        path
        for path in sorted(root.rglob("*.py"))
        if not set(path.relative_to(root).parts) & set(EXCLUDED)
        and not any(part.startswith("config-") for part in path.relative_to(root).parts)
        and path.stat().st_size <= MAX_FILE_BYTES
    ]
    return [path for path in files if path not in set(held)], held


def read_text(path: Path) -> str:
    """The file as UTF-8; the few files in other encodings keep replacement characters."""
    return path.read_text(encoding="utf-8", errors="replace")


def train_tokenizer(files: Sequence[Path], vocab_size: int) -> Tokenizer:
    """A byte-level BPE with the two special tokens as its last ids."""
    from tokenizers import decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - 2,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((read_text(path) for path in files), trainer)
    tokenizer.add_special_tokens([END_OF_TEXT, MASK])
    if tokenizer.get_vocab_size() != vocab_size:
        raise ValueError(f"the corpus gave {tokenizer.get_vocab_size()} tokens, wanted {vocab_size}")
    return tokenizer


def encode_files(tokenizer: Tokenizer, files: Sequence[Path]) -> list[np.ndarray]:
    """Token ids of each file, ended by the end-of-text token."""
    end = tokenizer.token_to_id(END_OF_TEXT)
    encoded = tokenizer.encode_batch([read_text(path) for path in files])
    return [np.asarray([*item.ids, end], np.int32) for item in encoded]
