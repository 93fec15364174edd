"""Brackets: arms that start together and are compared at rungs, where only the best go on."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass

from fedtuner import checks
from fedtuner.core.records import Key
from fedtuner.core.schedule import Evidence, Score, Scoring, Start, Step, best
from fedtuner.errors import SpecError, brief

MOST = 100_000  # arms of a schedule: each has a state, and every step looks at all that are alive


@dataclass(frozen=True)
class Bracket:
    """``arms`` arms compared at each rung; ``keep[r]`` of them go on after rung r; the last keeps one."""

    arms: int
    rungs: tuple[int, ...]
    keep: tuple[int, ...]

    @property
    def cost(self) -> int:
        """Rounds that the bracket uses when no arm diverges."""
        alive = (self.arms, *self.keep)
        return sum(n * (t - s) for n, t, s in zip(alive, self.rungs, (0, *self.rungs), strict=False))


class Bracketed:
    """A schedule that plays brackets one after the other: a base class, with what such schedules have in common."""

    discount: float
    score: str
    needs: frozenset[str] = frozenset()

    @property
    def brackets(self) -> tuple[Bracket, ...]:
        raise NotImplementedError

    @property
    def scoring(self) -> Scoring:
        return Scoring(self.score, self.discount)

    def steps(self) -> Generator[Step, Evidence, Key]:
        return play(self.brackets)


def play(brackets: Sequence[Bracket]) -> Generator[Step, Evidence, Key]:
    """Start the arms of each bracket in turn, let the best go on at each rung, and return the best survivor of all."""
    final: dict[int, Score] = {}
    reached: dict[int, int] = {}
    out: tuple[int, ...] = ()
    first = 0
    for bracket in brackets:
        alive = tuple(range(first, first + bracket.arms))
        start = dict.fromkeys(alive, Start(horizon=bracket.rungs[-1]))
        first += bracket.arms
        for until, keep in zip(bracket.rungs, bracket.keep, strict=True):
            evidence = yield Step(dict.fromkeys(alive, until), start, out)
            kept = tuple(sorted(best(evidence.scores, keep)))
            alive, out, start = kept, tuple(arm for arm in alive if arm not in kept), {}
        final |= {arm: evidence.scores[arm] for arm in alive}
        reached |= dict.fromkeys(alive, bracket.rungs[-1])
    winner = best(final, 1)[0]
    return winner, reached[winner]


def rounds(budget: int, longest: int) -> tuple[int, int]:
    """Return budget and longest; refuse budgets that do not pay for one arm."""
    budget, longest = checks.whole("schedule.budget", budget), checks.whole("schedule.longest", longest)
    if budget < longest:
        less = f"budget = {brief(budget)} is less than longest = {brief(longest)}"
        raise SpecError(f"{less}: raise budget or lower longest")
    return budget, longest


def check_arms(arms: int, budget: int, longest: int) -> None:
    """Refuse schedules of too many arms."""
    if arms > MOST:
        raise SpecError(
            f"budget = {brief(budget)} and longest = {brief(longest)} start {brief(arms)} arms, but a schedule may "
            f"start at most {MOST}: lower budget or raise longest"
        )
