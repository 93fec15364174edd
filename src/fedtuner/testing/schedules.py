"""The laws of schedules, played on tables of numbers: no model is trained, so they take milliseconds.

from fedtuner.testing import ScheduleLaws

class TestMySchedule(ScheduleLaws):
    def schedule(self):
        return MySchedule(budget=2000, longest=200)
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from fedtuner import tables
from fedtuner.core.records import Key
from fedtuner.core.schedule import Play, Schedule, Score, Step, imagined
from fedtuner.rng import stream

Table = Callable[[int, int], Score]  # what an arm scores at a round; a child scores as the arm that it descends from


@dataclass
class Course:
    """What a schedule has done on a table so far, step by step."""

    steps: list[Step] = field(default_factory=list)
    at: dict[int, int] = field(default_factory=dict)  # the round that each arm has reached
    root: dict[int, int] = field(default_factory=dict)  # the first arm whose configuration each arm has, or has changed
    spent: int = 0  # rounds of all arms together
    out: set[int] = field(default_factory=set)
    states: set[Key] = field(default_factory=set)  # the states that a store has: latest ones, and those kept
    winner: Key | None = None

    def take(self, step: Step) -> None:
        self.steps.append(step)
        for arm, start in step.start.items():
            self.at[arm] = start.parent[1] if start.parent else 0
            of = start.like if start.like is not None else start.parent[0] if start.parent else None
            self.root[arm] = arm if of is None else self.root[of]
        self.out.update(step.out)
        self.spent += sum(max(0, until - self.at.get(arm, 0)) for arm, until in step.until.items())
        self.at |= step.until
        self.states &= set(step.keep)
        self.states |= {(arm, round) for arm, round in self.at.items() if arm not in self.out}

    @property
    def roots(self) -> list[int]:
        """The arms that a sampler proposes."""
        return sorted(set(self.root.values()))


def play(schedule: Schedule, table: Table) -> Course:
    """Play the schedule to its end, its arms scoring what the table says."""
    course = Course()
    for _ in paused(schedule, table, course):
        pass
    return course


def paused(schedule: Schedule, table: Table, course: Course) -> Iterator[Step]:
    """Play the schedule as ``play`` does, yielding each step before it is taken."""
    on = Play(schedule)
    while on.step is not None:
        # Every step costs a round, so a schedule that asks for more steps than rounds never comes to an end.
        steps = len(course.steps)
        assert steps < schedule.budget, f"{steps} steps and no end, on a budget of {schedule.budget}"
        step = on.step
        yield step
        course.take(step)
        on.tell(imagined(step.until, lambda arm, at: table(course.root.get(arm, arm), at), schedule.scoring.metric))
    course.winner = on.winner


def noisy(seed: int) -> Table:
    """Return a table without rhyme or reason, in which every tenth score is not finite."""

    def table(arm: int, at: int) -> Score:
        first, second, luck = (float(u) for u in stream(seed, "noise", arm, at).random(3))
        return (math.nan if luck < 0.05 else math.inf if luck < 0.1 else first), second

    return table


def noiseless(best: int) -> Table:
    """Return a table in which every arm learns, the curves never cross, and ``best`` is the best throughout."""

    def table(arm: int, at: int) -> Score:
        return (-1.0 if arm == best else (arm * 7 % 11) / 11.0) + 1.0 / at, 0.0

    return table


def constant(score: float, except_arm: int | None = None, its_score: float = 0.0) -> Table:
    """Return a table in which every arm always has the same score, but for perhaps one arm."""

    def table(arm: int, at: int) -> Score:
        return (its_score, its_score) if arm == except_arm else (score, score)

    return table


class ScheduleLaws:
    """What every schedule promises; override ``schedule`` to return yours, ready to run."""

    def schedule(self) -> Schedule:
        raise NotImplementedError("override schedule()")

    def tables(self) -> Iterator[Table]:
        """Yield the tables that the laws are tried on: noise, order, and scores that say nothing."""
        yield from (noisy(seed) for seed in range(5))
        yield noiseless(0)
        yield from (constant(score) for score in (0.0, math.nan, math.inf, -math.inf))

    def _courses(self) -> Iterator[tuple[Course, Iterator[Step]]]:
        """Yield a course for each table, and its steps, each before it is taken."""
        schedule = self.schedule()
        for table in self.tables():
            course = Course()
            yield course, paused(schedule, table, course)

    def test_it_can_stand_in_a_table(self) -> None:
        """A study's journal holds its schedule, so it is a dataclass or has ``describe()``."""
        schedule = self.schedule()
        assert isinstance(schedule, Schedule)
        assert isinstance(json.loads(json.dumps(tables.plain(schedule), allow_nan=False)), Mapping)

    def test_the_budget_is_never_exceeded(self) -> None:
        schedule = self.schedule()
        for table in self.tables():
            spent = play(schedule, table).spent
            assert spent <= schedule.budget, f"{spent} rounds, but the budget is {schedule.budget}"

    def test_every_arm_only_moves_forward(self) -> None:
        """Each step advances each of its arms, none past ``longest``; arms start once, numbered in order."""
        longest = self.schedule().longest
        for course, steps in self._courses():
            for step in steps:
                assert step.until, f"{step} has no arm"
                known = len(course.at)
                numbers = list(range(known, known + len(step.start)))
                assert sorted(step.start) == numbers, f"{sorted(step.start)} start, but {numbers} are next"
                for arm, until in step.until.items():
                    assert arm in course.at or arm in step.start, f"{step}, but arm {arm} has not started"
                    parent = step.start[arm].parent if arm in step.start else None
                    at = course.at.get(arm, parent[1] if parent else 0)
                    assert at < until, f"{step}, but arm {arm} is at round {at} already"
                    assert until <= longest, f"{step} goes past longest = {longest}"

    def test_an_arm_that_is_out_is_gone(self) -> None:
        """What a step names as ``out`` had been running, runs no more and does not win: its state may be forgotten."""
        for course, steps in self._courses():
            for step in steps:
                assert course.at.keys() >= set(step.out), f"{step}, but only {sorted(course.at)} had started"
                assert course.out.isdisjoint(step.out), f"{step} has an arm out a second time"
                gone = course.out | set(step.out)
                assert gone.isdisjoint(step.until), f"{step}, but {sorted(gone)} are out"
            winner, _ = _winner(course)
            assert winner not in course.out, f"arm {winner} won, but was out"

    def test_states_that_are_named_are_there(self) -> None:
        """A child's parent and the winner are an arm's latest state, or one that every step since has kept."""
        for course, steps in self._courses():
            for step in steps:
                parents = {start.parent for start in step.start.values() if start.parent is not None}
                assert parents <= course.states, f"{parents - course.states} are parents, but were not kept"
                wrong = set(step.keep) - course.states
                assert not wrong, f"{step}, but the states {wrong} are not there"
            winner = _winner(course)
            assert winner in course.states, f"{winner} won, but its state was not kept"

    def test_the_best_arm_of_a_noiseless_table_wins(self) -> None:
        """Where the curves never cross, the best arm or a child of it survives every elimination."""
        schedule = self.schedule()
        roots = play(schedule, noiseless(0)).roots
        for best in {*roots[:: max(1, len(roots) // 50)], roots[-1]}:
            winner = _root(play(schedule, noiseless(best)))
            assert winner == best, f"arm {winner} won, but {best} was the best at every round"

    def test_scores_that_are_not_finite_still_give_a_winner(self) -> None:
        """Where every arm diverged one of them wins; where one did not, it wins, however bad."""
        schedule = self.schedule()
        for bad in (math.nan, math.inf, -math.inf):
            course = play(schedule, constant(bad))
            arm, round = _winner(course)
            assert 0 < round <= course.at[arm], f"arm {arm} won at round {round} of {course.at[arm]}"
            for sound in {0, course.roots[len(course.roots) // 2], course.roots[-1]}:
                winner = _root(play(schedule, constant(bad, sound, 1e9)))
                assert winner == sound, f"arm {winner} with {bad} won over arm {sound} with a finite score"

    def test_the_same_scores_give_the_same_steps(self) -> None:
        """A run depends on its scores alone: not on other runs of the same schedule, finished or under way."""
        schedule = self.schedule()
        for table in self.tables():
            alone = play(self.schedule(), table)
            other, beside = paused(schedule, noisy(99), Course()), paused(schedule, table, Course())
            for step in alone.steps:
                next(other, None)
                assert next(beside, None) == step, f"the same scores, but {step} only where no other run is under way"
            again = play(schedule, table)
            assert again == alone, f"the same scores, but first {alone} and then {again}"


def _winner(course: Course) -> Key:
    won = course.winner
    assert isinstance(won, tuple), f"{won!r} won, but a winner is an arm and a round"
    assert won[0] in course.at, f"arm {won[0]} won, but has not started"
    return won


def _root(course: Course) -> int:
    return course.root[_winner(course)[0]]
