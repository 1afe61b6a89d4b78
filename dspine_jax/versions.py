"""Versions of what a result depends on."""

import platform
from importlib.metadata import PackageNotFoundError, version

PACKAGES = ("dspine-jax", "jax", "jaxlib", "flax")


def version_of(package: str) -> str:
    """The installed version; "not installed" for a source tree that was never installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def versions() -> dict[str, str]:
    """Package -> version, and Python's."""
    return {package: version_of(package) for package in PACKAGES} | {"python": platform.python_version()}
