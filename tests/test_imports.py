"""Imports go one way: pallas_kernels, dspine_jax, then convert and serve side by side."""

import ast
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
FOLDERS = ("pallas_kernels", "dspine_jax", "convert", "serve")
MODULES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))

# What each folder may import of this project.
ALLOWED = {
    "pallas_kernels": {"pallas_kernels"},
    "dspine_jax": {"pallas_kernels", "dspine_jax"},
    "convert": {"pallas_kernels", "dspine_jax", "convert"},
    "serve": {"pallas_kernels", "dspine_jax", "serve"},
}

# Other people's packages that must not come into these folders.
HTTP = {"http", "socket", "urllib", "requests", "httpx", "aiohttp", "uvicorn", "starlette", "fastapi"}
TEXT = {"tokenizers", "transformers", "huggingface_hub"}
FORBIDDEN = {
    "pallas_kernels": {"torch", "flax", "optax", "orbax", "safetensors"} | TEXT | HTTP,
    "dspine_jax": {"torch", "transformers", "huggingface_hub"} | HTTP,
    "convert": {"torch"} | TEXT | HTTP,
    "serve": {"torch", "transformers", "huggingface_hub"},
}


def imported_names(source: str) -> set[str]:
    """Every dotted name that the source imports, wherever the statement stands."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import; wanted the full name"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def faults(folder: str, source: str) -> list[str]:
    """Sentences about the imports of a module in `folder` that break a rule."""
    found = []
    for name in sorted(imported_names(source)):
        top = name.split(".")[0]
        if top in (*FOLDERS, "tests") and top not in ALLOWED[folder]:
            found.append(f"{folder} imports {name}")
        if top in FORBIDDEN[folder]:
            found.append(f"{folder} imports {name}")
        if name == "jax._src" or name.startswith("jax._src."):
            found.append(f"{folder} imports the private {name}")
    return found


def relative(path: pathlib.Path) -> str:
    return str(path.relative_to(ROOT))


def test_there_is_something_to_check():
    assert {relative(path).split("/")[0] for path in MODULES} >= {"pallas_kernels", "dspine_jax"}


# Runs in the peers' environment, in its own process: may import torch and transformers, but nothing of this project.
PEER = ROOT / "serve" / "benchmark" / "transformers_peer.py"


@pytest.mark.parametrize("path", [path for path in MODULES if path != PEER], ids=relative)
def test_module_imports_only_what_its_folder_may(path):
    assert faults(relative(path).split("/")[0], path.read_text()) == []


def test_the_script_for_the_peers_imports_nothing_of_this_project():
    tops = {name.split(".")[0] for name in imported_names(PEER.read_text())}
    assert "transformers" in tops and not tops & {"jax", "flax", "tests", *FOLDERS}
    modules = {name for path in MODULES for name in imported_names(path.read_text())}
    assert not [name for name in modules if "transformers_peer" in name]


# The one file that may use what jax keeps private.
PRIVATE = ROOT / "tests" / "kernels" / "jax_private.py"


@pytest.mark.parametrize("path", sorted((ROOT / "tests").rglob("*.py")), ids=relative)
def test_torch_and_jax_share_no_process_and_no_test_uses_private_jax(path):
    names = imported_names(path.read_text())
    tops = {name.split(".")[0] for name in names}
    if tops & {"torch", "transformers"}:
        # A script that tests run as a subprocess: pytest must not collect it, nor may it import this project.
        assert not path.name.startswith("test_")
        assert not tops & {"jax", "flax", "tests", *FOLDERS}
    assert path == PRIVATE or not [name for name in names if name.startswith("jax._src")]


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_no_file_bears_the_name_of_a_standard_module(path):
    name = path.parent.name if path.stem in ("__init__", "__main__") else path.stem
    assert name not in sys.stdlib_module_names


@pytest.mark.parametrize(
    ("folder", "source"),
    [
        ("pallas_kernels", "import dspine_jax.config"),
        ("dspine_jax", "def f():\n    from convert import tables"),
        ("dspine_jax", "import torch.nn as nn"),
        ("dspine_jax", "from urllib.request import urlopen"),
        ("convert", "from serve import text"),
        ("serve", "import convert"),
        ("serve", "from tests.tolerances import FP32_OP"),
        ("pallas_kernels", "from jax._src import core"),
        ("pallas_kernels", "from jax import _src"),
    ],
)
def test_the_rules_can_fail(folder, source):
    assert len(faults(folder, source)) == 1
