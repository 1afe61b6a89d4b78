"""The models with every kernel give the same tokens as with the XLA forms, cycle by cycle."""

import json
import os
import subprocess
import sys

import pytest

from tests.kernels import interpreted_cycle
from tests.kernels.interpreter import BLACKWELL, HOPPER

pytestmark = pytest.mark.kernels


@pytest.mark.parametrize(("kind", "new_tokens"), [(HOPPER, 6), (BLACKWELL, 4)])
def test_a_whole_generation_gives_the_same_tokens(kind, new_tokens):
    done = subprocess.run(
        [sys.executable, "-m", interpreted_cycle.__name__, kind, str(new_tokens)],
        env=os.environ | {"JAX_PLATFORMS": "cpu", "PJRT_NPROC": "32"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    report = json.loads(done.stdout)
    assert report["kernels"] == report["xla"]
    assert not report["races"]
    # Some later block stands on a fold of more than one row, so that every part of a cycle had an effect.
    assert any(accepted for request in report["xla"]["accepted"] for accepted in request[:-1])
    assert all(len(tokens) == new_tokens for tokens in report["xla"]["tokens"])
