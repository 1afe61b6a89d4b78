"""`load`, `load_hf` and the public names."""

import importlib
import types

import jax.numpy as jnp
import pytest

import dspine_jax
from dspine_jax import ConfigError, DraftOptions, WeightsError, load, load_hf
from tests.checkpoints import same_bits
from tests.text_pair import TextPair, text_pair
from tests.tiny import random_drafter, random_target


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> TextPair:
    return text_pair(tmp_path_factory.getbasetemp())


def test_public_names_exist_and_no_submodule_hides_a_function():
    for name in dspine_jax.__all__:
        assert not isinstance(getattr(dspine_jax, name), types.ModuleType), name
    importlib.import_module("dspine_jax.generate")
    importlib.import_module("dspine_jax.load")
    assert callable(dspine_jax.generate) and callable(dspine_jax.load)


def test_both_loaders_give_the_weights_that_were_written(folders):
    converted = load(folders.converted)
    direct = load_hf(target=folders.target, draft=folders.draft)
    assert converted.plan == direct.plan  # equal plans share compiled programs
    assert (converted.target_config, converted.drafter_config) == (folders.target_config, folders.drafter_config)
    wanted = (
        (converted.plan.target.names, random_target(folders.target_config, 1), "target"),
        (converted.plan.drafter.names, random_drafter(folders.drafter_config, 2), "drafter"),
    )
    for names, flat, model in wanted:
        for pair in (converted, direct):
            leaves = getattr(pair.weights, model)
            assert all(same_bits(leaf, flat[name]) for name, leaf in zip(names, leaves, strict=True))


@pytest.mark.parametrize("dtype", ["bfloat16", jnp.bfloat16])
def test_dtype_rounds_the_weights_but_not_the_decays(folders, dtype):
    options = DraftOptions(retrieval="direct")  # nothing derived, nothing to compile
    for pair in (
        load(folders.converted, dtype=dtype, options=options),
        load_hf(target=folders.target, draft=folders.draft, dtype=dtype, options=options),
    ):
        assert pair.dtype == jnp.bfloat16
        flat = random_target(folders.target_config, 1)
        for name, leaf in zip(pair.plan.target.names, pair.weights.target, strict=True):
            kept = name.endswith(("A_log", "dt_bias", "linear_attn.norm.weight"))
            assert same_bits(leaf, flat[name] if kept else flat[name].astype(jnp.bfloat16)), name
        assert all(leaf.dtype == jnp.bfloat16 for leaf in pair.weights.drafter)


def test_options_decide_what_is_derived_from_the_weights(folders):
    pair = load(folders.converted, options=DraftOptions(retrieval="direct", tail="table"))
    assert pair.weights.coarse_head is None and pair.weights.tables is not None
    pair = load_hf(target=folders.target, draft=folders.draft)
    assert pair.weights.coarse_head is not None and pair.weights.tables is None


def test_a_map_entry_reaches_the_reader(folders):
    with pytest.raises(WeightsError, match="no_such_tensor"):
        load_hf(target=folders.target, draft=folders.draft, map=["fc.weight=no_such_tensor"])


def test_folders_that_cannot_be_loaded(folders, tmp_path):
    with pytest.raises(WeightsError, match="no such folder"):
        load(tmp_path / "missing")
    with pytest.raises(WeightsError, match=r"make one with `dspine convert`, or load .* with load_hf"):
        load(folders.target)
    with pytest.raises(WeightsError, match=r"already converted.*dspine_jax\.load"):
        load_hf(target=folders.converted, draft=folders.draft)
    with pytest.raises(ConfigError):
        load_hf(target=folders.draft, draft=folders.draft)


@pytest.mark.parametrize("dtype", ["float16", "int8", "half", jnp.float16])
def test_an_unknown_dtype_is_refused_before_anything_is_read(dtype, tmp_path):
    with pytest.raises(WeightsError, match="choose one of bfloat16, float32"):
        load(tmp_path, dtype=dtype)
