"""The schedule of ``auto``: a rung, a duel from the best arm's model, and the winner's long run."""

import pytest

from fedtuner.core.schedule import outline
from fedtuner.schedules import Duel
from fedtuner.testing import ScheduleLaws


class TestDuel(ScheduleLaws):
    def schedule(self):
        return Duel(200)


class TestAlone(ScheduleLaws):
    def schedule(self):
        return Duel(40)


class TestFew(ScheduleLaws):
    def schedule(self):
        return Duel(40, arms=2)


@pytest.mark.parametrize(
    ("budget", "arms", "rung", "run"),
    [(10, 1, 0, 10), (67, 1, 0, 67), (68, 3, 3, 41), (100, 7, 3, 61), (150, 9, 4, 90), (500, 9, 13, 305)],
)
def test_the_rounds_of_a_budget(budget, arms, rung, run):
    made = Duel(budget)
    assert (made.arms, made.rung, made.run) == (arms, rung, run)
    assert outline(made).cost == budget
