"""Random search: arms that are all trained to their end; the best wins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedtuner import checks
from fedtuner.schedules.brackets import Bracket, Bracketed, check_arms, rounds


@dataclass(frozen=True)
class RandomSearch(Bracketed):
    """Random search: budget // longest arms, each trained to ``longest``; the best wins.

    All arms start at once. With ``together`` so many do, and the next ones only when these have finished: a sampler
    that learns from finished arms (``samplers.optuna``) then has something to learn from, most with ``together=1``.
    """

    kind: ClassVar[str] = "random_search"
    budget: int = 2000
    longest: int = 200
    discount: float = 0.0
    score: str = "error"
    together: int | None = None  # how many arms start at once; None is all of them

    def __post_init__(self) -> None:
        budget, longest = rounds(self.budget, self.longest)
        check_arms(budget // longest, budget, longest)
        together = None if self.together is None else checks.whole("schedule.together", self.together)
        checks.settle(self, budget=budget, longest=longest, together=together, discount=self.scoring.discount)

    @property
    def brackets(self) -> tuple[Bracket, ...]:
        """A bracket for the arms that start together."""
        arms = self.budget // self.longest
        size = min(self.together or arms, arms)
        return tuple(Bracket(min(size, arms - first), (self.longest,), (1,)) for first in range(0, arms, size))
