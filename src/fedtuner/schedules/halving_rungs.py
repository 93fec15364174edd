"""Successive halving: Algorithm 1 of the paper, with the rungs of its appendix.

Jamieson and Talwalkar, "Non-stochastic Best Arm Identification and Hyperparameter Optimization", AISTATS 2016.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from fedtuner import checks
from fedtuner.errors import SpecError, brief
from fedtuner.schedules.brackets import Bracket, Bracketed, check_arms, rounds


@dataclass(frozen=True)
class Halving(Bracketed):
    """Successive halving: of eta^eliminations arms the best 1/eta survive each rung; the last trains to longest."""

    kind: ClassVar[str] = "halving"
    budget: int = 2000  # communication rounds, over all arms
    longest: int = 200  # rounds of the longest arm
    eta: int = 3  # one arm in eta survives an elimination
    eliminations: int = 3  # eta^eliminations arms start
    discount: float = 0.0  # weight of a past round's score; 0: the latest round alone
    score: str = "error"  # what arms are compared by: error or loss

    def __post_init__(self) -> None:
        budget, longest = rounds(self.budget, self.longest)
        eliminations = checks.whole("schedule.eliminations", self.eliminations, 0)
        eta = checks.whole("schedule.eta", self.eta, 2 if eliminations else 1)
        checks.settle(self, budget=budget, longest=longest, eta=eta, eliminations=eliminations)
        checks.settle(self, discount=self.scoring.discount)
        self.brackets  # noqa: B018 (mistakes show now)

    @cached_property
    def brackets(self) -> tuple[Bracket, ...]:
        times = tuple(rungs(self.budget, self.longest, self.eta, self.eliminations))
        # The survivor of the last elimination trains on to `longest`, unless the elimination is there already.
        keep = tuple(max(1, self.eta ** (self.eliminations - r)) for r in range(1, self.eliminations + 1))
        keep += (1,) * (len(times) - len(keep))
        return (Bracket(self.eta**self.eliminations, times, keep),)


def rungs(budget: int, longest: int, eta: int = 3, eliminations: int = 3) -> list[int]:
    """Return the rounds at which arms are compared; the last is ``longest``.

    The appendix's formula: eta^R arms, R equal steps of (T - M) / ((eta^(R+1) - 1)/(eta - 1) - R - 1) rounds, then the
    survivor trains to M. What whole steps leave over lengthens the earliest steps that it can pay for (one round more
    of step i costs one round for each arm alive in it and saves the survivor one), so no schedule of this form uses
    more of the budget. No step goes past M: what a budget has beyond that stays unused (``schedule.unused`` says how
    much), and more eliminations or a larger ``longest`` would use it.

    >>> rungs(4000, 800)
    [89, 177, 268, 800]
    >>> rungs(2000, 200)
    [50, 100, 150, 200]
    >>> rungs(500, 64, eta=2, eliminations=4)  # 20 rounds stay unused
    [16, 32, 48, 64]
    """
    budget, longest = rounds(budget, longest)
    eliminations = checks.whole("schedule.eliminations", eliminations, 0)
    if eliminations == 0:
        return [longest]
    eta = checks.whole("schedule.eta", eta, 2)
    tree = f"(eta {brief(eta)}, eliminations {brief(eliminations)})"
    if eliminations > math.log2(budget):  # there are at least 2^eliminations arms
        raise SpecError(
            f"budget = {brief(budget)} cannot give the arms of such a tree {tree} one round each: raise budget or "
            "lower eliminations"
        )
    if longest < eliminations:
        raise SpecError(
            f"longest = {longest} has no room for {eliminations} eliminations: raise longest to {eliminations} or "
            "more, or lower eliminations"
        )
    prices = [eta**r - 1 for r in range(eliminations, 0, -1)]
    if budget - longest < sum(prices):
        raise SpecError(
            f"budget = {brief(budget)} cannot give {brief(eta**eliminations)} arms {tree} one round each and one of "
            f"them {longest}: raise budget to {brief(longest + sum(prices))} or more, or lower eliminations"
        )
    check_arms(eta**eliminations, budget, longest)
    step = min((budget - longest) // sum(prices), longest // eliminations)
    left, room = budget - longest - step * sum(prices), longest - step * eliminations
    lengths = []
    for price in prices:
        extra = min(left // price, room)
        left, room = left - extra * price, room - extra
        lengths.append(step + extra)
    times = [sum(lengths[: i + 1]) for i in range(eliminations)]
    return times if times[-1] == longest else [*times, longest]
