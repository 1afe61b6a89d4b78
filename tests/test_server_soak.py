"""A few seconds of `python -m tests.soak`: faults, a kill, a restart, a drain, and not one wrong answer."""

from tests.soak.run import soak


def test_a_short_soak(tmp_path):
    figures = soak(tmp_path, seconds=9, clients=6, slots=2)
    assert figures["faults"] == []
    equal = sum(count for outcome, count in figures["outcomes"].items() if "equal to" in outcome)
    assert equal > 5 and figures["statuses"]["200"] >= equal
    assert any("cut by the kill" in outcome for outcome in figures["outcomes"])
