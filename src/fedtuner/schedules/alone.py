"""One arm and no search: what the untuned default is trained by."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import ClassVar

from fedtuner import checks
from fedtuner.core.records import Key
from fedtuner.core.schedule import Evidence, Scoring, Start, Step


@dataclass(frozen=True)
class Alone:
    """One arm trains for all rounds; its state after ``mark`` of them is kept, too."""

    kind: ClassVar[str] = "alone"
    budget: int = 500
    mark: int | None = None
    discount: float = 0.0
    score: str = "error"
    needs: ClassVar[frozenset[str]] = frozenset()
    goes_on: ClassVar[str] = "run"  # what further rounds are for: ``Longer.by``

    def __post_init__(self) -> None:
        budget = checks.whole("schedule.budget", self.budget)
        mark = None if self.mark is None else checks.whole("schedule.mark", self.mark, 1, budget)
        checks.settle(self, budget=budget, mark=mark, discount=self.scoring.discount)

    @property
    def longest(self) -> int:
        return self.budget

    @property
    def scoring(self) -> Scoring:
        return Scoring(self.score, self.discount)

    def steps(self) -> Generator[Step, Evidence, Key]:
        start, keep = {0: Start(horizon=self.budget)}, tuple[Key, ...]()
        if self.mark is not None and self.mark < self.budget:
            yield Step({0: self.mark}, start)
            start, keep = {}, ((0, self.mark),)
        yield Step({0: self.budget}, start, keep=keep)
        return 0, self.budget
