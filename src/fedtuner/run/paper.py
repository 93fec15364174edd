"""The paper's tuning as a recipe: ``tune(problem, recipe=ft.paper(2000))``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedtuner import checks, methods, samplers
from fedtuner.core.federation import Federation
from fedtuner.schedules import Halving
from fedtuner.tuners import FedEx


@dataclass(frozen=True)
class Paper:
    """Successive halving around FedEx: Algorithms 1 and 2 of Khodak et al. 2021, with their settings.

    The longest arm has a tenth of the budget, as in the paper's experiments on FEMNIST and CIFAR-10.
    """

    budget: int = 2000
    longest: int | None = None  # None: a tenth of the budget
    k: int = 27  # client configurations that each arm tries

    def __post_init__(self) -> None:
        budget = checks.whole("budget", self.budget)
        longest = max(1, budget // 10) if self.longest is None else checks.whole("longest", self.longest)
        checks.settle(self, budget=budget, longest=longest)
        self._schedule()  # mistakes show now

    def _schedule(self) -> Halving:
        assert self.longest is not None
        return Halving(self.budget, self.longest)

    def __call__(self, federation: Federation, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings of a study: what is given, and the paper's for the rest."""
        usual = {"schedule": self._schedule(), "tuner": FedEx(self.k), "sampler": samplers.uniform}
        return {**usual, **given, "method": methods.paper_ranges(given["method"])}


paper = Paper
