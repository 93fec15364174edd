"""A schedule that ends early where nothing improves any more."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from fedtuner import checks
from fedtuner.core.records import Key
from fedtuner.core.schedule import Evidence, Play, Score, Step, best
from fedtuner.schedules.longer import Around


@dataclass(frozen=True)
class Patient(Around):
    """``first``, until the lowest score has not improved for ``patience`` rounds over all arms: then the best arm wins.

    The best of all states that there are: the latest of arms that are not out, and those that ``first`` keeps because
    it may go back to them. Steps of more rounds than ``patience`` are divided, so that it is looked at in between. An
    arm's rounds are the same.
    """

    kind: ClassVar[str] = "patient"
    patience: int

    def __post_init__(self) -> None:
        checks.settle(self, patience=checks.whole("patience", self.patience))

    @property
    def goes_on(self) -> str:
        """What further rounds are for."""
        return getattr(self.first, "goes_on", "schedule")

    def with_budget(self, budget: int) -> Patient:
        return replace(self, first=replace(self.first, budget=budget))  # type: ignore[type-var]

    @property
    def budget(self) -> int:
        return self.first.budget

    @property
    def longest(self) -> int:
        return self.first.longest

    def steps(self) -> Generator[Step, Evidence, Key]:
        """Play the first schedule, looking at the scores."""
        course, at, seen = Play(self.first), dict[int, int](), dict[Key, Score]()
        lowest, waited = math.inf, 0
        while (step := course.step) is not None:
            at |= {arm: start.parent[1] if start.parent else 0 for arm, start in step.start.items()}
            at = {arm: t for arm, t in at.items() if arm not in step.out}
            start, out = step.start, step.out
            while True:
                until = self._part(step.until, at)
                evidence = yield Step(until, start, out, step.keep)
                used = sum(_done(evidence, arm, t, since=at[arm]) for arm, t in until.items())
                start, out, at = {}, (), {**at, **until}
                seen |= {(arm, until[arm]): score for arm, score in evidence.scores.items()}
                now = min((score for score, _ in evidence.scores.values() if math.isfinite(score)), default=math.inf)
                lowest, waited = (now, 0) if now < lowest else (lowest, waited + used)
                if waited >= self.patience:
                    return _best([*sorted(until.items()), *sorted(at.items()), *step.keep], seen)
                if until == dict(step.until):
                    break
            course.tell(evidence)
        assert course.winner is not None
        return course.winner

    def _part(self, until: Mapping[int, int], at: Mapping[int, int]) -> dict[int, int]:
        """Return how far arms go until scores are looked at again."""
        share = max(1, self.patience // max(1, len(until)))
        return {arm: min(t, at[arm] + share) for arm, t in until.items()}


def _done(evidence: Evidence, arm: int, until: int, since: int) -> int:
    """Return how many rounds an arm has done up to one: fewer where it has ended."""
    records = evidence.records.get(arm, ())
    last = until if arm not in evidence.ended else min(until, records[-1].round) if records else since
    return max(0, last - since)


def _best(states: Sequence[Key], seen: Mapping[Key, Score]) -> Key:
    """Return the state of the lowest score when it was made; of several the first."""
    scores = {n: seen.get(state, (math.inf, math.inf)) for n, state in enumerate(states)}
    return states[best(scores, 1)[0]]
