"""Schedules of one's own, whose arms depend on scores: they share their arms with no other study."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from fedtuner.core.records import Key
from fedtuner.core.schedule import Evidence, Scoring, Start, Step, best


@dataclass(frozen=True)
class Own:
    """What both have in common."""

    budget: int = 30
    longest: int = 10
    arms: int = 3
    scoring = Scoring()
    needs: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Population(Own):
    """Every third round the worst arm makes room for a child of the best, which goes on from the best's state."""

    def steps(self) -> Generator[Step, Evidence, Key]:
        alive, start, out = list(range(self.arms)), dict.fromkeys(range(self.arms), Start()), ()
        for until in range(3, self.longest, 3):
            evidence = yield Step(dict.fromkeys(alive, until), start, out)
            first, *_, last = best(evidence.scores, self.arms)
            child = max(alive) + 1
            alive, start, out = (
                [a for a in alive if a != last] + [child],
                {child: Start((first, until), _hotter)},
                (last,),
            )
        evidence = yield Step(dict.fromkeys(alive, self.longest), start, out)
        return best(evidence.scores, 1)[0], self.longest


def _hotter(space: Any, arm: Any, rng: Any) -> tuple[Any, Any]:
    return {**arm.client, "lr": 1.5 * arm.client["lr"]}, arm.server


@dataclass(frozen=True)
class Race(Own):
    """All arms go on round by round, the worst drops out after rounds that its score decides, the last one wins."""

    def steps(self) -> Generator[Step, Evidence, Key]:
        alive, start, out, until = list(range(self.arms)), dict.fromkeys(range(self.arms), Start()), (), 0
        while True:
            until += 1
            evidence = yield Step(dict.fromkeys(alive, until), start, out)
            order = best(evidence.scores, len(alive))
            if until == self.longest or len(alive) == 1:
                return order[0], until
            gap = evidence.scores[order[-1]][1] - evidence.scores[order[0]][1]  # of the losses
            start, out = {}, (order[-1],) if gap > 0.2 else ()
            alive = [arm for arm in alive if arm not in out]
