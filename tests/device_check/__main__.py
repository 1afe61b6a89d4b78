"""What only a GPU can show, in a few minutes: `make device-check`.

    kernels    every Mosaic kernel at 27B sizes: numbers against the float32 reference; time against XLA's form and
               against the bytes it moves
    lossless   the bundled pair in float32: speculative and plain decoding give the same tokens on this device
    float8     exactness of the matrix unit's float8 sums, promoted to float32 every 128 and not
    tune       only when named: times the candidate tiles of every kernel and writes the best for this device kind
    cost       a pair of the released 27B sizes with random bfloat16 weights: a plain step and a cycle, in turn

A short table goes to the terminal, everything measured to a JSON file. Wants jax 0.11.2 and nothing fetched.
"""

import argparse
import datetime
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

from pallas_kernels import tuning
from tests.device_check import accumulation, kernels, models, tune

PARTS = ("float8", "kernels", "lossless", "cost", "tune")
# Bytes per second, of the vendor's data sheets.
BANDWIDTH = {"H100": 3.35e12, "H200": 4.8e12, "B200": 8e12, "B300": 8e12}


def main() -> int:
    """0 when every check holds."""
    parser = argparse.ArgumentParser(
        prog="device-check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--parts", nargs="+", choices=PARTS, default=PARTS[:-1], help="what to run (default: all but tune)"
    )
    parser.add_argument("--ops", nargs="+", default=(), help="only these kernels")
    parser.add_argument("--tuned", type=Path, help="where tuned tiles go (default: beside the kernels)")
    parser.add_argument("--json", type=Path, default=Path("build/device-check.json"), help="where the numbers go")
    arguments = parser.parse_args()
    device = jax.devices()[0]
    if device.platform != "gpu":
        print(f"device-check: error: the default device is {device.platform}, wanted a GPU", file=sys.stderr)
        return 1
    bandwidth = next((value for name, value in BANDWIDTH.items() if name in device.device_kind), None)
    if bandwidth is None:
        print(f"device-check: error: the GPU is {device.device_kind}, wanted one of {list(BANDWIDTH)}", file=sys.stderr)
        return 1
    report: dict[str, Any] = {
        "device": device.device_kind,
        "jax": jax.__version__,
        "date": datetime.date.today().isoformat(),
        "findings": [],
    }
    start = time.perf_counter()
    for finding in _findings(arguments, bandwidth):
        print(_line(finding), flush=True)
        report["findings"].append(finding)
        # Written as it grows: a run that is cut short leaves what it found.
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(report, indent=1))
    bad = [finding for finding in report["findings"] if not finding["ok"]]
    print(
        f"{len(report['findings'])} findings, {len(bad)} not as wanted, {time.perf_counter() - start:.0f} s;"
        f" all numbers in {arguments.json}"
    )
    return 1 if bad else 0


def _findings(arguments: argparse.Namespace, bandwidth: float) -> Iterator[dict[str, Any]]:
    if "float8" in arguments.parts:
        yield accumulation.check()
    if "tune" in arguments.parts:
        path = arguments.tuned or tuning.file_of(jax.devices()[0].device_kind)
        for finding in tune.tune(arguments.ops, path):
            yield {"check": "tune"} | finding
    if "kernels" in arguments.parts:
        for finding in kernels.check(bandwidth, arguments.ops):
            yield {"check": "kernel"} | finding
    if "lossless" in arguments.parts:
        with jax.default_matmul_precision("highest"):
            yield models.lossless()
    if "cost" in arguments.parts:
        yield from models.cost()


def _line(finding: dict[str, Any]) -> str:
    """One line for the terminal."""
    verdict = "ok " if finding["ok"] else "BAD"
    if finding["check"] == "kernel" and "errors" in finding:
        return (
            f"{verdict} {finding['op']:<22} {finding['call']:<9} error {max(finding['errors']):.1e}"
            f"  kernel {finding['mosaic_gpu_us']:8.1f} us  xla {finding['xla_us']:8.1f} us"
            f"  floor {finding['floor_us']:7.1f} us"
        )
    return f"{verdict} " + " ".join(f"{key}={value}" for key, value in finding.items() if key != "ok")


if __name__ == "__main__":
    sys.exit(main())
