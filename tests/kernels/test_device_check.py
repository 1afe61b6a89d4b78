"""The script for a GPU must not rot where there is none: its parts run on small sizes in the interpreter."""

import dataclasses
import json

import jax
import pytest

from pallas_kernels import tuning
from pallas_kernels.retrieval import default_tiles
from tests.device_check import accumulation, inputs, kernels, lookup, tune
from tests.kernels import test_odd_sizes
from tests.kernels.interpreter import interpreting
from tests.kernels.programs import all_programs

pytestmark = pytest.mark.kernels


def test_every_program_is_known_to_the_script():
    with interpreting(cores=132):
        for program in all_programs():
            assert program.op in kernels.DEVICE_KERNELS
            forms = [
                jax.eval_shape(lambda *a, p=program, f=form: p.function(*a, implementation=f), *program.shapes)
                for form in ("reference", "xla", "mosaic_gpu")
            ]
            assert forms[0] == forms[1] == forms[2]


def test_tiles_to_tune():
    """Every lookup is found, and its heuristic is among the candidates or beside them."""
    with interpreting(cores=132):
        for program in all_programs():
            if program.op in tune._CANDIDATES:
                op, size, heuristic = lookup.lookup(program)
                assert op == program.op and size
                candidates = list(tune._CANDIDATES[program.op](program, heuristic))
                assert candidates and all(type(candidate) is type(heuristic) for candidate in candidates)


def test_a_tuned_file_is_read_back(tmp_path, monkeypatch):
    monkeypatch.setattr(tuning, "FOLDER", tmp_path)
    best = dataclasses.replace(default_tiles(16), stages=2)
    with interpreting():
        path = tuning.file_of("NVIDIA H100 (interpreted)")
        tune.write(path, {"retrieval": {"rows=16": {"microseconds": 1.0, "tiles": dataclasses.asdict(best)}}})
        tuning._read.cache_clear()
        assert tuning.tuned_tiles("retrieval", "rows=16", default_tiles(16)) == best
        assert tuning.tuned_tiles("retrieval", "rows=32", default_tiles(32)) == default_tiles(32)
        stale = json.loads(path.read_text())
        stale["tiles"]["retrieval"]["rows=16"]["tiles"]["banks"] = 3
        path.write_text(json.dumps(stale))
        tuning._read.cache_clear()
        with pytest.raises(ValueError, match=r"fields.*banks.*measure again"):
            tuning.tuned_tiles("retrieval", "rows=16", default_tiles(16))
    tuning._read.cache_clear()


def test_agreement_and_times_of_a_small_program():
    small = next(program for program in test_odd_sizes.PROGRAMS if program.op == "retrieve" and "48" in program.label)
    program = dataclasses.replace(small, op="retrieval")
    with interpreting(cores=2):
        finding = kernels.agreement(program)
    assert finding["ok"] and len(finding["errors"]) == 2

    def fewer_candidates(*given, implementation):
        coarse = 128 if implementation == "reference" else 17
        return small.function(*given, coarse=coarse, implementation=implementation)

    wrong = dataclasses.replace(program, function=fewer_candidates)
    with interpreting(cores=2):
        assert not kernels.agreement(wrong)["ok"]


def test_float8_sums():
    with interpreting(cores=1):
        finding = accumulation.check(hidden=512)
    assert finding["ok"] and max(finding["errors_rms"].values()) < 1e-6


def test_arguments_have_the_shapes_of_their_program():
    for program in all_programs():
        given = jax.eval_shape(lambda p=program: inputs.arguments(p, seed=1))
        assert given == program.shapes
