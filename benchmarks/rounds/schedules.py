"""Variants of ``auto``'s schedule, to see what a part of it is worth."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import ClassVar

from fedtuner.core.records import Key
from fedtuner.core.schedule import Evidence, Start, Step, best
from fedtuner.schedules.duel_and_run import SHARE, Duel
from fedtuner.schedules.judging import untrained_loss


@dataclass(frozen=True)
class RungAndRun(Duel):
    """The rung has the duel's rounds, too; its best arm trains alone for the rest."""

    kind: ClassVar[str] = "rung and run"

    @property
    def rung(self) -> int:
        assert self.arms is not None
        return int(SHARE * self.budget / self.arms) if self.arms > 1 else 0

    @property
    def run(self) -> int:
        assert self.arms is not None
        return self.budget - self.rung * self.arms

    @property
    def longest(self) -> int:
        return self.rung + self.run - self.last

    def steps(self) -> Generator[Step, Evidence, Key]:
        """Play the rung and the run."""
        assert self.arms is not None
        if self.arms == 1:
            return (yield from self._run(None, 0, default=True))
        evidence = yield Step(dict.fromkeys(range(self.arms), self.rung), dict.fromkeys(range(self.arms), Start()))
        scores = self._first_scores(evidence, untrained_loss(evidence.records[0]))
        [leader] = best(scores, 1)
        out = tuple(arm for arm in range(self.arms) if arm != leader)
        return (yield from self._run((leader, self.rung), self.arms, out, default=leader == 0))


@dataclass(frozen=True)
class OnceOnly(Duel):
    """The last rounds of the run are not trained once more: clients fine-tune with the step that the model had."""

    kind: ClassVar[str] = "rung, duel and run"

    @property
    def last(self) -> int:
        return 0
