"""The cache of compiled programs: where it lies, and that a second process compiles nothing."""

import json
from pathlib import Path

import jax
import pytest

from dspine_jax import compile_cache
from tests.checkpoints import python
from tests.text_pair import PROMPT, text_pair

SETTINGS = (
    "jax_compilation_cache_dir",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_min_entry_size_bytes",
)

RUN = """
import contextlib, io, json, os, sys
import jax
cache, model, prompt = sys.argv[1:]
os.environ["XDG_CACHE_HOME"] = cache
events = []
jax.monitoring.register_event_listener(lambda event, **_: events.append(event))
from dspine_jax.cli import main
with contextlib.redirect_stdout(io.StringIO()) as out:
    assert main(["generate", model, prompt, "--max-new-tokens", "12", "--json"]) == 0
count = lambda name: events.count("/jax/compilation_cache/" + name)
print(json.dumps({"hits": count("cache_hits"), "misses": count("cache_misses")}))
print(json.dumps(json.loads(out.getvalue())["token_ids"]))
"""


@pytest.fixture
def settings():
    """Puts JAX's settings back, since the rest of the tests must not use a cache."""
    before = {name: getattr(jax.config, name) for name in SETTINGS}
    yield
    for name, value in before.items():
        jax.config.update(name, value)


def test_a_second_process_finds_every_program(tmp_path, tmp_path_factory):
    model = text_pair(tmp_path_factory.getbasetemp()).converted
    runs = [python(RUN, tmp_path, model, PROMPT) for _ in range(2)]
    (first, tokens), (second, again) = ([json.loads(line) for line in run.stdout.splitlines()] for run in runs)
    assert first["misses"] > 0
    assert second["misses"] == 0 and second["hits"] == first["misses"] + first["hits"]
    assert tokens == again and len(tokens) == 12  # programs from the disk compute the same
    assert any((tmp_path / "dspine-jax" / "compiled").iterdir())
    assert [run.stderr for run in runs] == ["", ""]


def test_the_folder_is_the_user_s_own(monkeypatch, tmp_path, settings):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    jax.config.update("jax_compilation_cache_dir", None)
    folder = compile_cache.enable()
    assert folder is not None and folder == tmp_path / "cache" / "dspine-jax" / "compiled"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert [getattr(jax.config, name) for name in SETTINGS] == [str(folder), 0, 0]


@pytest.mark.parametrize("value", ["", "relative/folder"])
def test_without_a_usable_setting_it_lies_in_the_home(monkeypatch, value):
    monkeypatch.setenv("XDG_CACHE_HOME", value)
    assert compile_cache.default_folder() == Path.home() / ".cache" / "dspine-jax" / "compiled"


def test_a_folder_that_jax_was_given_is_kept(tmp_path, settings):
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    assert compile_cache.enable() == tmp_path
    assert jax.config.jax_compilation_cache_dir == str(tmp_path)


def test_no_cache_is_better_than_no_run(monkeypatch, tmp_path, settings):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    jax.config.update("jax_compilation_cache_dir", None)
    assert compile_cache.enable() is None
    assert jax.config.jax_compilation_cache_dir is None
