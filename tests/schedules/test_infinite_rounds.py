"""Scores of arms that had rounds with an infinite loss."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtuner.core.schedule import discounted

values = st.floats(0.0, 1e6)
discounts = st.floats(0.01, 1.0)
INF = math.inf


@given(st.lists(values | st.just(INF) | st.just(math.nan), max_size=6), st.floats(0.0, 1.0))
def test_after_an_infinite_round_the_score_is_infinite(before, discount):
    """It has just broken, so it comes after all that have not; also where nobody has validated since."""
    assert discounted([*before, INF], discount) == INF
    assert discounted([*before, INF, math.nan], discount) == INF


@given(st.lists(values | st.just(INF), max_size=8), values, discounts)
def test_an_arm_that_recovers_is_comparable(before, last, discount):
    assert math.isfinite(discounted([*before, last], discount))


@given(st.lists(values, min_size=1, max_size=8), st.data(), discounts)
def test_an_infinite_round_is_worse_than_any_other_that_the_arm_had(scores, data, discount):
    """Between rounds that stay, it counts as more than the worst of them."""
    at = data.draw(st.integers(0, len(scores) - 1))
    broken = discounted([*scores[:at], INF, *scores[at:]], discount)
    worst = discounted([*scores[:at], max(scores), *scores[at:]], discount)
    assert broken >= worst
    if discount ** len(scores) > 1e-6:
        assert broken > worst


def test_by_hand():
    """Rounds 4, infinity, 2 at discount 1/2. The worst is 4, the spread 2: infinity counts as 4 + max(4, 2, 1) = 8.

    (4/4 + 8/2 + 2) / (1/4 + 1/2 + 1) = 7 / 1.75 = 4
    """
    assert discounted([4.0, INF, 2.0], 0.5) == pytest.approx(4.0)


def test_it_is_forgotten_at_the_rate_of_the_discount():
    """The older the infinite round, the less it weighs."""
    found = [discounted([1.0, INF, *[1.0] * n], 0.5) for n in range(1, 8)]
    assert found == sorted(found, reverse=True)
    assert found[0] > 1.25
    assert found[-1] < 1.01
