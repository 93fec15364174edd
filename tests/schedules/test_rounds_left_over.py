"""Budgets that rungs cannot use: never an error, and what is left is said."""

import itertools

import pytest

import fedtuner as ft
import toys
from fedtuner.core.schedule import outline, unused
from fedtuner.errors import SpecError
from fedtuner.report.show import headline
from fedtuner.schedules import halving, hyperband, random_search, rungs


@pytest.mark.parametrize(
    ("budget", "longest", "eta", "eliminations", "expected", "left"),
    [
        (31, 10, 2, 2, [5, 10], 1),  # 21 = 5 * 4 + 1: a round more of the last step would end it at 11
        (500, 64, 2, 4, [16, 32, 48, 64], 20),  # 436 = 16 * 26 + 20: steps of 16 are at 64 already
        (505, 65, 2, 4, [17, 33, 49, 65], 9),  # 440 = 16 * 26 + 24, and there is room for one round: the first step's
        (10_000, 10, 2, 2, [5, 10], 9970),  # steps by the formula would be of 2497
        (10_000, 11, 2, 2, [6, 11], 9966),
        (10_000, 3, 2, 3, [1, 2, 3], 9986),
    ],
)
def test_golden_rungs_at_the_longest_run(budget, longest, eta, eliminations, expected, left):
    assert rungs(budget, longest, eta, eliminations) == expected
    assert unused(halving(budget, longest, eta, eliminations)) == left


@pytest.mark.slow
@pytest.mark.parametrize("eta", [2, 3, 4])
@pytest.mark.parametrize("eliminations", [1, 2, *(pytest.param(n, marks=pytest.mark.slow) for n in (3, 4))])
def test_a_larger_budget_is_never_refused_and_never_less_used(eta, eliminations):
    for longest in range(eliminations, 12):
        enough = longest + sum(eta**r - 1 for r in range(1, eliminations + 1))
        made = [
            halving(budget, longest, eta, eliminations) for budget in range(enough, 3 * enough + 40, 1 + enough // 25)
        ]
        for schedule in made:
            (bracket,) = schedule.brackets
            assert bracket.rungs[-1] == longest
            assert all(s < t for s, t in itertools.pairwise(bracket.rungs))
            assert bracket.cost + unused(schedule) == schedule.budget
        assert all(a.brackets[0].cost <= b.brackets[0].cost for a, b in itertools.pairwise(made))


def test_more_eliminations_than_rounds_are_refused():
    said = "longest = 3 has no room for 4 eliminations: raise longest to 4 or more, or lower eliminations"
    with pytest.raises(SpecError, match=said):
        rungs(1000, 3, 2, 4)
    assert rungs(1000, 4, 2, 4) == [1, 2, 3, 4]
    assert rungs(1000, 3, 2, 3) == [1, 2, 3]


def test_what_is_unused():
    assert unused(halving(2000, 200)) == 0
    assert unused(random_search(2050, 200)) == 50
    for schedule in (hyperband(100, 9), hyperband(100, 9, fill=True)):
        assert unused(schedule) == 100 - outline(schedule).cost > 0


def test_a_study_says_so():
    made = ft.prepare(toys.problem(), cohort=3, schedule=halving(31, 10, 2, 2)).describe()
    assert "; 31 rounds, of which 1 stays unused, at most 10 an arm;" in headline(made, 4)
    made = ft.prepare(toys.problem(), cohort=3, schedule=random_search(50, 12)).describe()
    assert "; 50 rounds, of which 2 stay unused, at most 12 an arm;" in headline(made, 4)
    made = ft.prepare(toys.problem(), cohort=3, schedule=random_search(50, 10)).describe()
    assert "; 50 rounds, at most 10 an arm;" in headline(made, 5)
