"""Hyperband: brackets from many short arms to few long ones, an equal share of the budget each.

Li et al., "Hyperband: A Novel Bandit-Based Approach to Hyperparameter Optimization", JMLR 2018.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from fedtuner import checks
from fedtuner.schedules.brackets import Bracket, Bracketed, check_arms, rounds


@dataclass(frozen=True)
class Hyperband(Bracketed):
    """Hyperband: brackets from many short arms to few long ones, an equal share of the budget each.

    With S + 1 brackets, bracket s starts n = ceil(B/M * eta^s / (s + 1)) arms at M / eta^s rounds, B = budget / (S + 1)
    and M = ``longest``; S is the largest, at most floor(log_eta M), for which every bracket can end with a whole arm:
    budget >= (S + 1)^2 M. At equality these are the standard brackets. Arms continue where they paused, so a bracket
    may use less than its share; n is lowered where it would use more. With ``fill`` n is raised to what the share pays
    for, and what is left over goes to brackets of shorter arms: for comparisons with other schedules at equal rounds.
    """

    kind: ClassVar[str] = "hyperband"
    budget: int = 3200
    longest: int = 200
    eta: int = 3
    discount: float = 0.0
    score: str = "error"
    fill: bool = False  # as many arms as the budget pays for

    def __post_init__(self) -> None:
        budget, longest = rounds(self.budget, self.longest)
        eta = checks.whole("schedule.eta", self.eta, 2)
        checks.settle(self, budget=budget, longest=longest, eta=eta, discount=self.scoring.discount)
        self.brackets  # noqa: B018 (mistakes show now)

    @cached_property
    def brackets(self) -> tuple[Bracket, ...]:
        """The brackets, from the one of the shortest arms to that of the longest."""
        most = 0
        while self.eta ** (most + 1) <= self.longest and (most + 2) ** 2 * self.longest <= self.budget:
            most += 1
        made: list[Bracket] = []
        for s in range(most + 1):  # the longest arms first: short ones can use what they leave
            left = self.budget - sum(bracket.cost for bracket in made)
            share = left // (most + 1 - s) if self.fill else self.budget // (most + 1)
            made.append(self._bracket(share, s))
        return tuple(made[::-1])

    def _bracket(self, share: int, s: int) -> Bracket:
        def of(arms: int) -> Bracket:
            keep = (*(max(1, arms // self.eta ** (i + 1)) for i in range(s)), 1)
            return Bracket(arms, tuple(max(1, self.longest // self.eta ** (s - i)) for i in range(s + 1)), keep)

        arms = math.ceil(share * self.eta**s / (self.longest * (s + 1)))
        check_arms(arms, self.budget, self.longest)
        while of(arms).cost > share:
            arms -= 1
        while self.fill and of(arms + 1).cost <= share:
            arms += 1
        return of(arms)
