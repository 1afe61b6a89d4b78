"""Compiled programs kept on disk, so that only the first run on a machine waits for the compiler.

They lie in `$XDG_CACHE_HOME/dspine-jax/compiled`, by default `~/.cache/dspine-jax/compiled`; deleting the
folder only costs the next run its compile time. A folder set by JAX's own `JAX_COMPILATION_CACHE_DIR` is used
instead, and `JAX_ENABLE_COMPILATION_CACHE=false` switches the cache off, as for any JAX program.
"""

import os
from pathlib import Path

import jax


def default_folder() -> Path:
    """Where compiled programs are kept for this user."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    return root / "dspine-jax" / "compiled"


def enable() -> Path | None:
    """Keeps every program that this process compiles from now on, and reuses those kept before.

    JAX itself keeps only programs that took a second to compile; many here take less, so the limit is 0.
    Returns the folder, or None when none can be made, in which case programs are compiled anew.
    """
    folder = jax.config.jax_compilation_cache_dir
    if folder is None:
        try:
            default_folder().mkdir(mode=0o700, parents=True, exist_ok=True)
        except (OSError, RuntimeError):  # a home that is read-only or unknown
            return None
        folder = str(default_folder())
        jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
    return Path(folder)
