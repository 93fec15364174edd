"""What the rounds of ``auto``'s arms say."""

import math
from dataclasses import replace

import pytest
from test_duel import record

from fedtuner.core.records import Row
from fedtuner.schedules.judging import ema, losses, mean_of_both, smaller_of_both, sum_of_both, untrained_loss


def rounds_of(*clients, diverged=False):
    """Return a round whose clients have these losses before and after local training, and validation examples."""
    rows = tuple(Row(i, 0, 1, n, before, after, 0.5, 0.5) for i, (before, after, n) in enumerate(clients))
    return replace(record(0, 1, 1.0, 1.0, diverged), rows=rows)


def test_a_clients_loss_counts_at_most_twice_and_a_rounds_once_as_much_as_the_untrained_ones():
    assert losses(rounds_of((1.0, 0.5, 1), (1.6, 1.5, 1)), 2.0) == pytest.approx((1.3, 1.0))
    assert losses(rounds_of((0.5, 0.1, 1), (1e9, 3.5, 1)), 2.0) == pytest.approx((2.0, 1.8))  # (0.5 + 4) / 2 > 2
    assert losses(rounds_of((1.0, 1.0, 3), (2.0, 2.0, 1)), 2.0) == pytest.approx((1.25, 1.25))  # by |V|
    assert losses(rounds_of((1.0, 1.0, 1), (math.inf, math.nan, 0)), 2.0) == (1.0, 1.0)


def test_clients_that_differ_by_chance_have_no_advantage():
    """The mean is that of clients that are all alike, though half of them are above the untrained loss."""
    alike, apart = rounds_of(*[(1.6, 1.6, 6)] * 4), rounds_of(*[(0.8, 0.8, 6), (2.4, 2.4, 6)] * 2)
    assert losses(alike, 2.0) == pytest.approx(losses(apart, 2.0))


def test_where_single_clients_are_not_known_the_means_are_cut():
    assert losses(replace(record(0, 1, 5.0, 1.0), rows=()), 2.0) == (2.0, 1.0)


def test_scores_of_a_round():
    one = rounds_of((1.0, 0.4, 1), (1.0, 0.4, 1))
    assert sum_of_both(one, 2.0) == pytest.approx(1.0 + 0.25 * 0.4)
    assert smaller_of_both(one, 2.0) == pytest.approx(0.4)
    assert mean_of_both(one, 2.0) == pytest.approx(0.7)
    wreck = rounds_of((1.0, 0.4, 1), diverged=True)
    assert [score(wreck, 2.0) for score in (sum_of_both, smaller_of_both, mean_of_both)] == [math.inf] * 3


def test_an_exponential_mean_leaves_out_rounds_without_a_value():
    assert ema([2.0, math.nan, 1.0], math.nan) == pytest.approx(0.9 * 2.0 + 0.1 * 1.0)
    assert math.isnan(ema([math.nan], math.nan))


def test_the_untrained_loss_is_infinite_if_nobody_validated():
    assert untrained_loss([]) == untrained_loss([record(0, 1, math.nan, 1.0)]) == math.inf
    assert untrained_loss([record(0, 1, 2.3, 1.0), record(0, 2, 1.0, 1.0)]) == 2.3
