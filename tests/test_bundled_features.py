"""Every way to start a request hands the target's features of a short prompt to the bundled drafter."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

import dspine_jax
from dspine_jax import Stream, generate, generate_plain, load_hf
from dspine_jax.hf.tensor_file import TensorFile
from dspine_jax.training.corpus import source_files, standard_library
from dspine_jax.training.recipe import BUNDLED, read_recipe
from serve import generate_cli
from tests.checkpoints import write_safetensors

ASSETS = Path(dspine_jax.__file__).parent / "assets" / "tiny-pair"
TARGET, DRAFT = ASSETS / "target", ASSETS / "draft"
PROMPT_TOKENS, NEW = 20, 64
FLOOR = 1.8  # tokens per cycle, over all prompts; 1.0 means that nothing is accepted
PROMPTS = 3


@pytest.fixture(scope="module")
def prompts() -> list[str]:
    """The beginnings of files that no training step read."""
    held_out = source_files(standard_library(), read_recipe(BUNDLED)["corpus"]["held_out"])[1]
    tokenizer = Tokenizer.from_file(str(TARGET / "tokenizer.json"))
    texts = [file.read_text(encoding="utf-8") for file in held_out[:PROMPTS]]
    return [tokenizer.decode(tokenizer.encode(text).ids[:PROMPT_TOKENS]) for text in texts]


@pytest.fixture(scope="module")
def deaf(tmp_path_factory) -> Path:
    """The same drafter without the layer through which it reads features."""
    folder = tmp_path_factory.mktemp("deaf") / "draft"
    shutil.copytree(DRAFT, folder)
    file = TensorFile(DRAFT / "model.safetensors")
    tensors = {name: file.read(name) for name in file.tensors}
    assert np.asarray(tensors["fc.weight"], np.float32).any()
    tensors["fc.weight"] = np.zeros_like(tensors["fc.weight"])
    write_safetensors(folder / "model.safetensors", tensors)
    return folder


def ids_of(text: str) -> list[int]:
    return Tokenizer.from_file(str(TARGET / "tokenizer.json")).encode(text).ids


def by_generate(draft: Path, text: str, capsys):
    pair = load_hf(target=TARGET, draft=draft, dtype="float32")
    result = generate(pair, [ids_of(text)], max_new_tokens=NEW, stop_token_ids=[])
    return result.tokens[0].tolist(), sum(result.stats.cycles)


def by_stream(draft: Path, text: str, capsys):
    pair = load_hf(target=TARGET, draft=draft, dtype="float32")
    stream = Stream(pair, ids_of(text), max_new_tokens=NEW, stop_token_ids=[])
    tokens = np.concatenate(list(stream)).tolist()
    return tokens, sum(stream.result().stats.cycles)


def by_command(draft: Path, text: str, capsys):
    options = ["--dtype", "float32", "--max-new-tokens", str(NEW), "--ignore-eos", "--json"]
    assert generate_cli.main(["--target", str(TARGET), "--draft", str(draft), *options, text]) == 0
    result = json.loads(capsys.readouterr().out)
    return result["token_ids"], result["stats"]["cycles"]


@pytest.fixture(scope="module")
def plain(prompts) -> list[list[int]]:
    pair = load_hf(target=TARGET, draft=DRAFT, dtype="float32")
    ids = [ids_of(text) for text in prompts]
    assert all(len(each) <= PROMPT_TOKENS + 2 for each in ids)
    results = [generate_plain(pair, [each], max_new_tokens=NEW, stop_token_ids=[]) for each in ids]
    return [result.tokens[0].tolist() for result in results]


@pytest.mark.parametrize("run", [by_generate, by_stream, by_command])
def test_every_entry_point_drafts_from_the_prompts_features(prompts, plain, deaf, run, capsys):
    def acceptance(draft: Path) -> float:
        results = [run(draft, text, capsys) for text in prompts]
        assert [tokens for tokens, _ in results] == plain
        return PROMPTS * (NEW - 1) / sum(cycles for _, cycles in results)

    full, without = acceptance(DRAFT), acceptance(deaf)
    assert full >= FLOOR
    assert without < 0.8 * full
