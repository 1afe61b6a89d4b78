"""The pair that ships with the project: it must draft well on files it never saw, and change nothing."""

from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

import dspine_jax
from dspine_jax import DraftOptions
from dspine_jax.training.corpus import encode_files, source_files, standard_library
from dspine_jax.training.recipe import BUNDLED, read_recipe
from tests.tolerances import SAME_ACCEPTANCE

ASSETS = Path(dspine_jax.__file__).parent / "assets" / "tiny-pair"
NEW = 64


@pytest.fixture(scope="module")
def pair():
    return dspine_jax.load_hf(target=ASSETS / "target", draft=ASSETS / "draft", dtype="float32")


@pytest.fixture(scope="module")
def prompts():
    files = source_files(standard_library(), read_recipe(BUNDLED)["corpus"]["held_out"])[1]
    tokenizer = Tokenizer.from_file(str(ASSETS / "target" / "tokenizer.json"))
    return [ids[:128] for ids in encode_files(tokenizer, files)]


@pytest.fixture(scope="module")
def plain(pair, prompts):
    return dspine_jax.generate_plain(pair, prompts, max_new_tokens=NEW)


def acceptance(pair, prompts, plain):
    """Acceptance is worth something only beside the check that the tokens are plain decoding's."""
    result = dspine_jax.generate(pair, prompts, max_new_tokens=NEW)
    for ours, want in zip(result.tokens, plain.tokens, strict=True):
        np.testing.assert_array_equal(ours, want)
    assert result.finish_reason == plain.finish_reason
    return result.stats.acceptance_length


def test_each_part_of_the_drafter_raises_acceptance(pair, prompts, plain):
    full = acceptance(pair, prompts, plain)
    no_tail = acceptance(pair.with_options(DraftOptions(tail="off")), prompts, plain)
    no_bridge = acceptance(pair.with_options(DraftOptions(tail="off", bridge=False)), prompts, plain)
    assert full >= 2.0
    assert full > no_tail > no_bridge


def test_both_forms_of_tail_and_retrieval_draft_equally_well(pair, prompts, plain):
    full = acceptance(pair, prompts, plain)
    table = acceptance(pair.with_options(DraftOptions(tail="table")), prompts, plain)
    direct = acceptance(pair.with_options(DraftOptions(retrieval="direct")), prompts, plain)
    assert abs(table - full) < SAME_ACCEPTANCE * full
    assert abs(direct - full) < SAME_ACCEPTANCE * full


def test_the_two_models_fit_into_16_megabytes():
    assert sum(path.stat().st_size for path in ASSETS.rglob("*") if path.is_file()) < 16e6
