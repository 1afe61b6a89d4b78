"""`dspine train`: what it reads, that training and inference run one drafter, and both steps end to end."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dspine_jax
from dspine_jax.cache.draft_ring import DraftCache
from dspine_jax.training import cli
from dspine_jax.training.corpus import source_files, standard_library
from dspine_jax.training.drafter import draw_anchors
from dspine_jax.training.drafter_loss import _contexts
from dspine_jax.training.on_policy import sample_prompts
from dspine_jax.training.recipe import BUNDLED, read_recipe
from dspine_jax.weights import define_drafter, leaves_of
from tests.tiny import random_drafter, tiny_drafter_config, tiny_target_config
from tests.tolerances import FP32_OP, assert_close

SMALL = {
    "vocab_size": 320,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "head_dim": 8,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "target_layer_ids": [0, 1],
    "transfer_dim": 16,
    "message_dim": 8,
    "sliding_window": 24,
    "steps": 3,
    "warmup": 1,
    "batch": 2,
    "sequence": 64,
    "prompt_tokens": [8, 24],
    "sequences": 4,
    "anchors": 3,
}


@pytest.fixture
def small_recipe(tmp_path):
    lines = []
    for line in BUNDLED.read_text().splitlines():
        key = line.split(" = ")[0]
        lines.append(f"{key} = {SMALL[key]}" if key in SMALL else line)
    path = tmp_path / "small.toml"
    path.write_text("\n".join(lines))
    return path


def test_a_misspelt_or_missing_key_is_refused(tmp_path):
    path = tmp_path / "bad.toml"
    path.write_text(BUNDLED.read_text().replace("\nsteps = ", "\nstepz = ", 1) + "\n[extra]\n")
    with pytest.raises(ValueError, match="unknown table or key 'extra'") as caught:
        read_recipe(path)
    assert "missing steps" in str(caught.value) and "unknown stepz" in str(caught.value)


def test_held_out_files_are_never_trained_on():
    train, held = source_files(standard_library(), read_recipe(BUNDLED)["corpus"]["held_out"])
    assert len(held) == len(set(held)) >= 20 and not set(train) & set(held)
    assert len(train) > 200
    with pytest.raises(FileNotFoundError, match=r"no_such_file\.py"):
        source_files(standard_library(), ["no_such_file.py"])


def test_prompts_and_anchors_stay_in_their_ranges():
    files = [np.arange(n, dtype=np.int32) for n in (10, 300, 500)]
    prompts = sample_prompts(files, seed=1, count=50, shortest=4, longest=40)
    assert {len(p) for p in prompts} <= set(range(4, 41)) and len({len(p) for p in prompts}) > 10
    assert all(np.array_equal(p, np.arange(p[0], p[0] + len(p))) for p in prompts)
    anchors = draw_anchors(np.random.default_rng(0), np.array([5, 30]), length=64, block=16, count=8)
    assert anchors.shape == (2, 8) and anchors.max() <= 48
    assert anchors[0].min() >= 5 and anchors[1].min() >= 30
    assert all(len(set(row)) == 8 for row in anchors.tolist())


def test_training_reads_the_context_that_the_loop_would_have():
    target = tiny_target_config()
    config = tiny_drafter_config(target)
    definition, abstract = define_drafter(config, jnp.dtype("float32"))
    leaves = leaves_of(abstract, random_drafter(config, seed=3))
    length = 3 * (config.sliding_window or 8) + 5
    width = len(config.target_layer_ids) * config.hidden_size
    features = jnp.asarray(np.random.default_rng(0).normal(size=(2, length, width)), jnp.float32)
    anchors = jnp.array([[1, length // 2, length - 1], [3, 9, length - 2]])
    ids = jnp.array([1, 2, 3, 4, 5, 6])
    embedding = jnp.asarray(np.random.default_rng(1).normal(size=(config.vocab_size, config.hidden_size)), jnp.float32)

    @jax.jit
    def both(leaves):
        drafter = definition.bind(leaves)
        trained = drafter(ids, anchors.reshape(-1), _contexts(drafter, features, anchors), embedding)
        cache = DraftCache.zeros(config, 6, length, dtype=jnp.dtype("float32"))
        positions = jnp.broadcast_to(jnp.arange(length), (6, length))
        valid = positions < anchors.reshape(-1, 1)
        cache = drafter.write_context(jnp.repeat(features, 3, axis=0), positions, valid, cache)
        return trained.hidden, drafter(ids, anchors.reshape(-1), cache, embedding).hidden

    trained, looped = both(leaves)
    assert_close("hidden", trained, looped, FP32_OP)


def test_both_steps_write_a_pair_that_generates(tmp_path, small_recipe):
    out = tmp_path / "pair"
    recipe = ["--out", str(out), "--recipe", str(small_recipe)]
    with jax.numpy_dtype_promotion("standard"):  # optax raises a float to an integer step
        assert cli.main(["target", *recipe]) == 0
        assert cli.main(["draft", "--target", str(out / "target"), *recipe]) == 0
    for log in ("target.jsonl", "draft.jsonl"):
        lines = [json.loads(line) for line in (out / log).read_text().splitlines()]
        assert lines[-1]["step"] == SMALL["steps"]
        assert all(np.isfinite(value) for line in lines for value in line.values())
    pair = dspine_jax.load_hf(target=out / "target", draft=out / "draft", dtype="float32")
    result = dspine_jax.generate(pair, [[1, 2, 3]], max_new_tokens=8, stop_token_ids=())
    plain = dspine_jax.generate_plain(pair, [[1, 2, 3]], max_new_tokens=8, stop_token_ids=())
    np.testing.assert_array_equal(result.tokens[0], plain.tokens[0])
