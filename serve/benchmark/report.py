"""The report of a run as one JSON object: conditions first, then what was measured. docs/benchmark.md explains it."""

import datetime
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import jax

import dspine_jax
from dspine_jax.versions import versions
from serve.benchmark.forced import Forced
from serve.benchmark.measurement import Bench

FORMAT = "dspine-jax benchmark"
FORMAT_VERSION = 1


def conditions(bench: Bench) -> dict[str, Any]:
    """Everything about a run that is known before it."""
    how = bench.verification
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "forced": bench.forced,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "versions": versions(),
        "device": device(),
        "model": bench.subject.describe(),
        "settings": bench.workload.describe()
        | {
            "concurrency": list(bench.concurrency),
            "timed_prompts": max(bench.concurrency),
            "repeats": bench.repeats,
            "verification": how.method,
            "verify_width": "auto" if bench.auto_width else how.widths[0] if how.widths else None,
            "prefill": "whole prompts" if bench.read_all else "the last chunk of each prompt, zeros before it",
            "matmul_precision": jax.config.jax_default_matmul_precision,
            "forced_acceptance": None
            if not isinstance(how, Forced)
            else {"shares": list(how.shares), "tokens_per_cycle": how.tokens_per_cycle, "seed": how.seed},
        },
    }


def device() -> dict[str, Any]:
    """What the pair runs on, and the machine around it."""
    first = jax.devices()[0]
    return {
        "platform": first.platform,
        "kind": first.device_kind,
        "host_cpu": _cpu_name(),
        "host_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
    }


def commit() -> str | None:
    """The commit of the source tree that runs, with "+" when files differ from it; None outside a tree."""
    folder = Path(dspine_jax.__file__).parent
    try:
        head = _git(folder, "rev-parse", "--short=12", "HEAD")
        # An installed package may lie in somebody else's tree.
        if not _git(folder, "ls-files", "--", "__init__.py"):
            return None
        return head + ("+" if _git(folder, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=10, check=True)
    return done.stdout.strip()


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
