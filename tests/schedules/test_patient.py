"""Patience: which state wins where no score improves any more, and what counts as a round."""

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest

import fedtuner as ft
from fedtuner.core.records import Key
from fedtuner.core.schedule import Evidence, Play, Scoring, Start, Step, imagined
from fedtuner.schedules import Duel, Patient
from fedtuner.testing import ScheduleLaws
from fedtuner.testing.schedules import Course, paused, play


@dataclass(frozen=True)
class Returning:
    """One arm, whose model of the lowest score is kept; where it ends, another one goes on from there."""

    kind: ClassVar[str] = "returning"
    budget: int = 60
    piece: int = 5
    discount: float = 0.0
    score: str = "error"
    needs: ClassVar[frozenset[str]] = frozenset()

    @property
    def longest(self) -> int:
        return self.budget

    @property
    def scoring(self) -> Scoring:
        return Scoring(self.score, self.discount)

    def steps(self) -> Generator[Step, Evidence, Key]:
        arm, at, left, start, kept, lowest = 0, 0, self.budget, {0: Start()}, (), (float("inf"),)
        while left:
            until = at + min(self.piece, left)
            evidence = yield Step({arm: until}, start, keep=kept)
            start, now = {}, until
            if arm in evidence.ended:
                now = evidence.records[arm][-1].round
            elif evidence.scores[arm] < lowest:
                lowest, kept = evidence.scores[arm], ((arm, now),)
            left, at = left - (now - at), now
            if arm in evidence.ended and kept:
                (parent,), arm = kept, arm + 1
                at, start = parent[1], {arm: Start(parent)}
        return kept[0] if kept else (arm, at)


class TestPatienceWithKeptStates(ScheduleLaws):
    def schedule(self):
        return Patient(Returning(), 12)


def rising(lowest):
    """Return a table in which scores fall up to a round, and are all the worse from then on."""
    return lambda arm, at: (1 - at / 100, 0.0) if at <= lowest else (0.9, 0.0)


def ending(schedule, table, ends):
    """Play a schedule whose arm 0 ends with a round; return its winner and the rounds used, by arm."""
    course, reached = Play(schedule), {}
    while course.step is not None:
        for arm, start in course.step.start.items():
            reached[arm] = start.parent[1] if start.parent else 0
        until = {arm: min(t, ends) if arm == 0 else t for arm, t in course.step.until.items()}
        over = {arm: "diverged" for arm, t in course.step.until.items() if arm == 0 and t >= ends}
        reached |= until
        told = imagined(until, lambda arm, at: (float("inf"),) * 2 if arm == 0 and at >= ends else table(arm, at))
        course.tell(replace(told, ended=over))
    return course.winner, reached


def test_a_state_that_is_kept_wins_over_the_wreck_that_came_after_it():
    course = play(Patient(Returning(), 12), rising(20))
    assert course.winner == (0, 20)
    assert course.spent == 35  # the first look that is 12 rounds after


def test_where_the_latest_is_the_best_it_wins():
    assert play(Patient(Returning(), 12), lambda arm, at: (0.5, -at)).winner == (0, 20)


def test_patience_does_not_end_a_budget_with_a_wreck():
    """Its score falls to 0.4 in a hundred rounds and is 0.9 from then on."""
    course = play(
        Patient(Duel(500, arms=1), 20), lambda arm, at: (0.9 - at / 200, 2.0 - at / 60) if at <= 100 else (0.9, 1.9)
    )
    arm, round = course.winner
    assert (arm, round) in course.states
    assert arm == 0
    assert 60 < round <= 100


def test_a_state_that_is_kept_wins_over_an_arm_that_has_diverged():
    """Here patience ends it before the schedule can go back."""
    winner, _ = ending(Patient(Returning(piece=20), 1), rising(60), 22)
    assert winner == (0, 20)


def test_rounds_that_an_arm_has_not_done_do_not_count():
    """It diverges with round 22, and there are 18 of its step left: its child goes on."""
    winner, reached = ending(Patient(Returning(piece=20), 12), rising(60), 22)
    assert winner[0] == 1
    assert reached[1] > 40


def test_an_arm_that_waits_for_the_others_may_win():
    """Two arms one after the other; the first is far better when the second has tried for long enough."""
    course = play(Patient(ft.random_search(20, 10, together=1), 6), lambda arm, at: (arm + 1 / at, 0.0))
    assert course.winner == (0, 10)
    assert course.spent == 16


def test_arms_that_are_out_do_not_win():
    course = play(Patient(ft.halving(60, 20, 3, 1), 6), lambda arm, at: (arm + at / 100, 0.0))
    assert course.winner[0] not in course.out


@pytest.mark.parametrize("schedule", [ft.halving(60, 20, 3, 1), ft.random_search(30, 10), ft.hyperband(300, 27)])
def test_long_patience_changes_no_winner(schedule):
    for seed in range(5):

        def table(arm, at, seed=seed):
            return ((arm * 7 + seed) % 11 - at / 50, 0.0)

        courses = Course(), Course()
        for made, course in zip((schedule, Patient(schedule, 10_000)), courses, strict=True):
            for _ in paused(made, table, course):
                pass
        assert courses[0] == courses[1]
