"""A schedule that goes on after its end: by the same schedule with further arms, or by the winner's own training."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from fedtuner import checks
from fedtuner.core.records import Key
from fedtuner.core.schedule import Evidence, Play, Schedule, Score, Scoring, Start, Step, best
from fedtuner.errors import SpecError

WAYS = ("schedule", "run", "winner", "rest")
Link = tuple[int, str]  # the budget of an extension, over all rounds, and its way


@dataclass(frozen=True)
class Around:
    """A schedule around another one, ``first``: it scores arms as that does, and needs what that needs."""

    first: Schedule

    @property
    def scoring(self) -> Scoring:
        return self.first.scoring

    @property
    def needs(self) -> frozenset[str]:
        return self.first.needs


@dataclass(frozen=True)
class Longer(Around):
    """``first``, then the rest of the budget. Rounds that ``first`` leaves unused stay unused.

    "schedule"  the original schedule is played again with new arms; the better one of the winners wins.
    "run"       the winner's model goes on as a child with its configuration, and wins unless it ends early (diverges).
    "winner"    the same, asked for by ``Study.resume_winner``.
    "rest"      what a timeout has left of ``first``, with the same budget.
    """

    kind: ClassVar[str] = "longer"
    budget: int
    by: str = "schedule"

    def __post_init__(self) -> None:
        checks.one_of("by", self.by, WAYS)
        rest = self.by == "rest"
        least, most = self.first.budget + (not rest), self.first.budget if rest else None
        checks.settle(self, budget=checks.whole("budget", self.budget, least, most))
        if self.by == "schedule":
            self.second  # noqa: B018 (mistakes show now)

    @property
    def more(self) -> int:
        """The rounds beyond those of ``first``."""
        return self.budget - self.first.budget

    @property
    def second(self) -> Schedule:
        """The original schedule with the further rounds."""
        try:
            first: Any = original(self.first)
            made: Any = (
                first.with_budget(self.more) if hasattr(first, "with_budget") else replace(first, budget=self.more)
            )
        except (SpecError, TypeError) as error:
            raise SpecError(
                f"budget = {self.budget} leaves {self.more} rounds for a second {type(original(self.first)).__name__}: "
                f"{error}"
            ) from error
        return made  # type: ignore[no-any-return]

    @property
    def longest(self) -> int:
        """The rounds of the longest arm, with its ancestors'."""
        return self.first.longest + (0 if self.by in ("schedule", "rest") else self.more)

    def steps(self) -> Generator[Step, Evidence, Key]:
        course, known, scores, alive = Play(self.first), -1, dict[int, Score](), tuple[int, ...]()
        begun = dict[int, Start]()
        while (step := course.step) is not None:
            begun |= step.start
            known, alive = max(known, *step.start, -1), tuple(step.until)
            evidence = yield step
            scores |= evidence.scores
            course.tell(evidence)
        assert course.winner is not None
        if self.by == "rest":
            return course.winner
        out = tuple(arm for arm in alive if arm != course.winner[0])
        if self.by != "schedule":
            return (yield from self._run(course.winner, _trained(begun, course.winner[0]), known + 1, out))
        return (yield from self._again(course.winner, scores[course.winner[0]], known + 1, out))

    def _run(self, winner: Key, like: int, arm: int, out: tuple[int, ...]) -> Generator[Step, Evidence, Key]:
        end = winner[1] + self.more
        start = Start(winner, None, end, None if like == winner[0] else like)
        evidence = yield Step({arm: end}, {arm: start}, out, (winner,))
        return winner if arm in evidence.ended else (arm, end)

    def _again(self, winner: Key, score: Score, n: int, out: tuple[int, ...]) -> Generator[Step, Evidence, Key]:
        """Play the second schedule, whose arm 0 is arm n here."""
        course, scores = Play(self.second), {winner[0]: score}
        while (step := course.step) is not None:
            start = {arm + n: _moved(begun, n) for arm, begun in step.start.items()}
            keep = (winner, *((arm + n, round) for arm, round in step.keep))
            until = {arm + n: t for arm, t in step.until.items()}
            evidence = yield Step(until, start, (*out, *(arm + n for arm in step.out)), keep)
            out = ()
            scores |= evidence.scores
            own = {arm: evidence.scores[arm + n] for arm in step.until}
            records = {arm: evidence.records[arm + n] for arm in step.until if arm + n in evidence.records}
            ended = {arm - n: why for arm, why in evidence.ended.items()}
            course.tell(Evidence(own, records, ended, {arm - n: known for arm, known in evidence.arms.items()}))
        assert course.winner is not None
        other = (course.winner[0] + n, course.winner[1])
        return winner if best({arm: scores[arm] for arm in (winner[0], other[0])}, 1) == [winner[0]] else other


def _trained(begun: Mapping[int, Start], arm: int) -> int:
    """Return the arm whose configuration a model was trained with: not one that began where its training ends."""
    start = begun[arm]
    last = start.parent is not None and start.horizon == start.parent[1]
    return start.parent[0] if last and start.parent else arm


def _moved(start: Start, n: int) -> Start:
    parent = start.parent and (start.parent[0] + n, start.parent[1])
    return replace(start, parent=parent, like=None if start.like is None else start.like + n)


def original(schedule: Schedule) -> Schedule:
    """Return the schedule that a study began with."""
    return original(schedule.first) if isinstance(schedule, Longer) else schedule


def links(schedule: Schedule) -> tuple[Link, ...]:
    """Return the extensions of a schedule, the first one first."""
    return (*links(schedule.first), (schedule.budget, schedule.by)) if isinstance(schedule, Longer) else ()


def extended(schedule: Schedule, further: tuple[Link, ...]) -> Schedule:
    """Return a schedule with further extensions."""
    for budget, by in further:
        schedule = Longer(schedule, budget, by)
    return schedule
