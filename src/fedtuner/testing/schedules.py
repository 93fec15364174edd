"""The laws of schedules, played on tables of numbers: no model is trained, so they take milliseconds.

from fedtuner.testing import ScheduleLaws

class TestMySchedule(ScheduleLaws):
    def schedule(self):
        return my_schedule(budget=2000, longest=200)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass

from fedtuner.rng import stream
from fedtuner.schedules import Schedule, Score, Step

Table = Callable[[int, int], Score]  # what the arm scores at the round


@dataclass(frozen=True)
class Play:
    """What a schedule did on a table."""

    steps: tuple[Step, ...]
    rounds: Mapping[int, int]  # how far each arm was advanced
    spent: int  # rounds of all arms together
    winner: int

    @property
    def finalists(self) -> set[int]:
        """The arms alive at the end: no arm was advanced further."""
        furthest = max(self.rounds.values())
        return {arm for arm, reached in self.rounds.items() if reached == furthest}


def play(schedule: Schedule, table: Table) -> Play:
    """Run the schedule to its end, its arms scoring what the table says."""
    course = paused(schedule, table)
    while True:
        try:
            next(course)
        except StopIteration as end:
            played: Play = end.value
            return played


def paused(schedule: Schedule, table: Table) -> Generator[Step, None, Play]:
    """Run the schedule as ``play`` does, pausing at each step."""
    steps: list[Step] = []
    rounds: dict[int, int] = {}
    spent = 0
    coroutine = schedule.steps()
    try:
        step = next(coroutine)
        while True:
            # Every step costs a round, so a schedule that asks for more steps than rounds never comes to an end.
            assert len(steps) < schedule.budget, f"{len(steps)} steps and no end, on a budget of {schedule.budget}"
            steps.append(step)
            for arm in step.arms:
                spent += max(0, step.until - rounds.get(arm, 0))
                rounds[arm] = step.until
            yield step
            step = coroutine.send({arm: table(arm, step.until) for arm in step.arms})
    except StopIteration as end:
        return Play(tuple(steps), rounds, spent, end.value)


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
        """Return the schedule to be tested."""
        raise NotImplementedError("override schedule()")

    def tables(self) -> Iterator[Table]:
        """Yield the tables that the laws are tried on: noise, order, and scores that say nothing."""
        yield from (noisy(seed) for seed in range(5))
        yield noiseless(0)
        yield from (constant(score) for score in (0.0, math.nan, math.inf, -math.inf))

    def test_the_budget_is_never_exceeded(self) -> None:
        """No more rounds than ``budget`` are asked for, and no more than ``cost`` says."""
        schedule = self.schedule()
        for table in self.tables():
            spent = play(schedule, table).spent
            assert spent <= schedule.budget, f"{spent} rounds, but the budget is {schedule.budget}"
            assert spent <= schedule.cost, f"{spent} rounds, but the cost is said to be {schedule.cost}"

    def test_every_arm_only_moves_forward(self) -> None:
        """Each step advances each of its arms, none past ``longest``; the arms 0 .. ``arms`` - 1 all start."""
        schedule = self.schedule()
        for table in self.tables():
            rounds: dict[int, int] = {}
            for step in play(schedule, table).steps:
                assert step.arms, f"{step} has no arm"
                assert len(set(step.arms)) == len(step.arms), f"{step} has an arm twice"
                assert step.until <= schedule.longest, f"{step} goes past longest = {schedule.longest}"
                for arm in step.arms:
                    assert rounds.get(arm, 0) < step.until, f"{step}, but arm {arm} is at round {rounds[arm]} already"
                    rounds[arm] = step.until
            assert sorted(rounds) == list(range(schedule.arms)), f"{schedule.arms} arms, but {sorted(rounds)} started"

    def test_the_winner_was_alive_at_the_end(self) -> None:
        """No arm was advanced further than the winner: an eliminated arm does not come back."""
        schedule = self.schedule()
        for table in self.tables():
            played = play(schedule, table)
            assert played.winner in played.finalists, f"arm {played.winner} won, but {played.finalists} were left"

    def test_an_arm_that_is_out_is_gone(self) -> None:
        """What a step names as ``out`` had been running, runs no more and does not win: its state may be forgotten."""
        schedule = self.schedule()
        for table in self.tables():
            started: set[int] = set()
            out: set[int] = set()
            played = play(schedule, table)
            for step in played.steps:
                assert started.issuperset(step.out), f"{step}, but only {sorted(started)} had started"
                assert out.isdisjoint(step.out), f"{step} has an arm out a second time"
                out.update(step.out)
                assert out.isdisjoint(step.arms), f"{step}, but {sorted(out)} are out"
                started.update(step.arms)
            assert played.winner not in out, f"arm {played.winner} won, but was out"

    def test_the_best_arm_of_a_noiseless_table_wins(self) -> None:
        """Where the curves never cross, the best arm survives every elimination, whichever its number."""
        schedule = self.schedule()
        for best in {*range(0, schedule.arms, max(1, schedule.arms // 50)), schedule.arms - 1}:
            winner = play(schedule, noiseless(best)).winner
            assert winner == best, f"arm {winner} won, but {best} was the best at every round"

    def test_scores_that_are_not_finite_still_give_a_winner(self) -> None:
        """Where every arm diverged one of them wins; where one did not, it wins, however bad."""
        schedule = self.schedule()
        for bad in (math.nan, math.inf, -math.inf):
            winner = play(schedule, constant(bad)).winner
            assert winner in range(schedule.arms), f"{winner!r} won where every score was {bad}"
            for sound in {0, schedule.arms // 2, schedule.arms - 1}:
                winner = play(schedule, constant(bad, sound, 1e9)).winner
                assert winner == sound, f"arm {winner} with {bad} won over arm {sound} with a finite score"

    def test_the_same_scores_give_the_same_steps(self) -> None:
        """A run depends on its scores alone: not on other runs of the same schedule, finished or under way."""
        schedule = self.schedule()
        for table in self.tables():
            alone = play(self.schedule(), table)
            other, course = paused(schedule, noisy(99)), paused(schedule, table)
            for step in alone.steps:
                next(other, None)
                assert next(course, None) == step, f"the same scores, but {step} only where no other run is under way"
            again = play(schedule, table)
            assert again == alone, f"the same scores, but first {alone} and then {again}"
