"""Accepted lengths from a distribution. What the loop makes of them is tested in `test_bench_stages.py`."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

from serve.benchmark.forced import Forced, from_histogram, from_mean, read_shares


@pytest.mark.parametrize("tokens", [1, 1.5, 4.19, 8, 15.9, 16])
def test_a_mean_is_met_by_equal_chances(tokens):
    shares = from_mean(tokens, 16)
    assert len(shares) == 16 and sum(shares) == pytest.approx(1) and min(shares) >= 0
    assert Forced(shares=shares).tokens_per_cycle == pytest.approx(tokens)
    # The chance to go on is the same after every accepted proposal.
    reach = [sum(shares[n:]) for n in range(16)]
    if 1 < tokens < 16:
        assert np.allclose(np.diff(np.log(reach)), np.log(reach[1]))


def test_a_histogram_may_come_from_a_list_an_object_or_a_report(tmp_path):
    counts = [1, 0, 3]
    report = {"acceptance": [{"name": "full", "histogram": counts}, {"name": "tail off", "histogram": [9]}]}
    for number, content in enumerate((counts, {"histogram": counts}, report)):
        path = tmp_path / f"{number}.json"
        path.write_text(json.dumps(content))
        assert read_shares(str(path), 4) == (0.25, 0.0, 0.75, 0.0)
    assert read_shares("2.5", 4) == from_mean(2.5, 4)


@pytest.mark.parametrize("counts", [[0, 0], [1, -1], [1, 2, 3, 4, 5], [True], ["1"], [float("nan")]])
def test_a_histogram_that_is_none_is_refused(counts):
    with pytest.raises(ValueError, match="the histogram"):
        from_histogram(counts, 4)


@pytest.mark.parametrize("text", ["0.9", "4.1", "nan", "no-such-file.json"])
def test_a_mean_outside_the_block_and_a_missing_file_are_refused(text):
    with pytest.raises(ValueError, match=r"wanted 1 to 4|cannot be read"):
        read_shares(text, 4)


def test_draws_follow_the_shares_and_repeat():
    how = Forced(shares=(0.5, 0.25, 0.0, 0.25), seed=3)
    cycles = [jnp.full(32, cycle) for cycle in range(60)]
    drawn = np.array([how.draw(cycle) for cycle in cycles])
    share = np.bincount(drawn.ravel(), minlength=4) / drawn.size
    assert share[2] == 0
    # Five standard deviations of 1920 draws.
    assert np.all(np.abs(share - how.shares) < 5 * np.sqrt(0.25 / drawn.size))
    assert np.array_equal(how.draw(cycles[7]), drawn[7])
    assert len({tuple(row) for row in drawn[:20]}) > 1
    assert not np.array_equal(Forced(shares=how.shares, seed=4).draw(cycles[0]), drawn[0])
