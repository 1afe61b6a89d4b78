"""The benchmark's arithmetic on scripted arrivals: tokens are counted, not the pieces that they come in."""

import numpy as np
import pytest

from serve.benchmark.timeline import Spread, Timeline, figures, over_repeats, percentile, ratios


def timeline(times, *requests):
    return Timeline(np.array(times, float), np.array(requests).T)


ONE = timeline([1, 2, 4], [1, 4, 20])  # pieces of 1, 3 and 16 tokens


def test_tokens_are_counted_and_not_pieces():
    found = figures([ONE])
    assert found.tokens_per_second == 20 / 4
    assert found.decode_tokens_per_second == 19 / 3
    assert found.first_token_seconds == 1
    # Three tokens took a third of a second each, sixteen an eighth of two seconds.
    assert found.token_seconds == 1 / 8 and found.token_seconds_p95 == 1 / 3
    assert found.arrival_seconds == 1.5 and found.arrival_seconds_p95 == 2
    assert found.step_seconds == 1.5


def test_an_event_without_tokens_is_no_first_token_and_no_arrival():
    line = timeline([1, 2, 3, 5], [0, 2, 2, 3])
    assert line.first_tokens == [2]
    assert list(line.arrivals()) == [(3, 1)]
    assert line.tokens == 3


def test_every_request_has_its_own_first_token_and_arrivals():
    line = timeline([1, 2, 4], [1, 3, 3], [0, 1, 5])
    assert line.first_tokens == [1, 2]
    assert list(line.arrivals()) == [(1, 2), (2, 4)]
    assert line.tokens == 8
    # In the last step the first request was already done.
    assert line.full_steps == [1]


def test_rates_of_groups_come_from_all_tokens_and_all_seconds():
    slow = timeline([1, 11], [1, 11])
    assert figures([ONE, slow]).tokens_per_second == 31 / 15
    assert figures([ONE, slow]).decode_tokens_per_second == 29 / 13


def test_spreads_are_medians_with_the_extremes():
    runs = [figures([timeline([1, end], [1, 11])]) for end in (2, 5, 3)]
    found = over_repeats(runs)["tokens_per_second"]
    assert found == Spread(median=11 / 3, low=11 / 5, high=11 / 2)
    with pytest.raises(ValueError, match="nothing was measured"):
        Spread.of([])


def test_ratios_pair_what_ran_together():
    fast, slow = figures([timeline([1, 2], [1, 11])]), figures([timeline([1, 4], [1, 11])])
    assert ratios([fast, slow], [slow, fast], lambda one: one.tokens_per_second) == Spread(1.25, 0.5, 2.0)


def test_a_percentile_is_a_value_that_was_measured():
    assert percentile([4, 1, 3, 2], 95) == 4
    assert percentile(list(range(1, 101)), 95) == 95
    assert percentile([7], 95) == 7


@pytest.mark.parametrize(
    ("times", "emitted"), [([1, 2], [[3], [2]]), ([2, 1], [[1], [2]]), ([1], [[1], [2]]), ([], np.zeros((0, 1)))]
)
def test_what_runs_backwards_or_does_not_match_is_refused(times, emitted):
    with pytest.raises(ValueError, match=r"backwards|wanted"):
        Timeline(np.array(times, float), np.array(emitted))


def test_one_token_alone_has_no_rate_of_decoding():
    with pytest.raises(ValueError, match="at least 2 new tokens"):
        figures([timeline([1], [1])])
