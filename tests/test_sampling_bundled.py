"""What block verification is worth on the pair that ships with the project."""

from pathlib import Path

import jax
import numpy as np
import pytest
from tokenizers import Tokenizer

import dspine_jax
from dspine_jax import SamplingParams
from dspine_jax.sampling import width
from dspine_jax.training.corpus import encode_files, source_files, standard_library
from dspine_jax.training.recipe import BUNDLED, read_recipe

ASSETS = Path(dspine_jax.__file__).parent / "assets" / "tiny-pair"


@pytest.fixture(scope="module")
def pair():
    return dspine_jax.load_hf(target=ASSETS / "target", draft=ASSETS / "draft", dtype="float32")


def expected_accepted(tokens, candidates, q, p) -> tuple[np.ndarray, np.ndarray]:
    """Mean over the coins of what both methods accept of each block [B], float64, from their definitions."""
    q, p = q.astype(np.float64), p.astype(np.float64)
    p_drawn = np.take_along_axis(p[:, :-1], tokens[..., None], axis=2)[..., 0]
    ratio = p_drawn / np.sum(np.where(candidates == tokens[..., None], q, 0), axis=-1)
    by_token = np.cumprod(np.minimum(ratio, 1), axis=1).sum(axis=1)

    dense = np.zeros((*tokens.shape, p.shape[2]))
    np.put_along_axis(dense, candidates, q, axis=2)
    prefix = np.ones(len(tokens))
    none_from_here = []  # 1 - h_i
    for i in range(tokens.shape[1]):
        prefix = np.minimum(prefix * ratio[:, i], 1)
        h = prefix
        if i + 1 < tokens.shape[1]:
            mass = np.maximum(prefix[:, None] * p[:, i + 1] - dense[:, i + 1], 0).sum(axis=1)
            h = np.where(prefix >= 1, 1, mass / np.maximum(mass + 1 - prefix, 1e-300))
        none_from_here.append(1 - h)
    none_behind = np.cumprod(np.array(none_from_here)[::-1], axis=0)[::-1]
    return by_token, np.sum(1 - none_behind, axis=0)


def test_a_block_accepts_no_less_than_token_by_token(pair, monkeypatch):
    """The same sampled blocks of files that training never read, judged by both methods; the seeds are fixed."""
    blocks = []
    verify = width.verify_sampled

    def note(tokens, candidates, q, p):
        blocks.append(expected_accepted(*map(np.asarray, (tokens, candidates, q, p))))

    def spy(sampling, draft, p, *rest, **named):
        jax.debug.callback(note, draft.tokens, draft.candidates, draft.q, p)
        return verify(sampling, draft, p, *rest, **named)

    monkeypatch.setattr(width, "verify_sampled", spy)
    files = source_files(standard_library(), read_recipe(BUNDLED)["corpus"]["held_out"])[1]
    tokenizer = Tokenizer.from_file(str(ASSETS / "target" / "tokenizer.json"))
    prompts = [ids[:64].tolist() for ids in encode_files(tokenizer, files)][:16]
    params = [SamplingParams(temperature=1.0, seed=seed) for seed in range(len(prompts))]
    result = dspine_jax.generate(pair, prompts, max_new_tokens=32, stop_token_ids=[], sampling=params)
    jax.effects_barrier()
    by_token, by_block = np.concatenate(blocks, axis=1)
    print(f"{by_token.size} blocks: {by_token.mean():.4f} accepted token by token, {by_block.mean():.4f} as blocks")
    assert by_token.size >= sum(result.stats.cycles) > 100
    assert by_block.mean() >= by_token.mean() > 0.1
    # What was really accepted is what the definition says: a mean over some hundred cycles.
    accepted = np.concatenate(result.stats.accepted)
    assert abs(accepted.mean() - by_token.mean()) < 5 * accepted.std() / np.sqrt(accepted.size)
